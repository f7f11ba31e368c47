"""Lists of indices, UUIDs and MIG UUIDs, as CUDA and ROCm read them: which GPUs a framework sees, in its order.

Example: ``visible_by_lists(gpus, {"CUDA_VISIBLE_DEVICES": "3,1"}, ["CUDA_VISIBLE_DEVICES"])`` sees positions (3, 1).
Source: CUDA C Programming Guide (environment variables).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from numa_launch.idsets import shortened
from numa_launch.machine.gpu import Gpu
from numa_launch.reasons import Note, note


class Visible(NamedTuple):
    """Positions of the visible GPUs in the host's list; `by` is the variable that chose them, None: none is set."""

    positions: tuple[int, ...]
    by: str | None = None
    notes: tuple[Note, ...] = ()


def visible_by_lists(gpus: Sequence[Gpu], environ: Mapping[str, str], names: Sequence[str]) -> Visible:
    """Return what these variables leave of the host's GPUs, each choosing among those that the one before left."""
    seen, by = tuple(range(len(gpus))), None
    notes: tuple[Note, ...] = ()
    for name in names:
        if name in environ:
            chosen = [gpus[i] for i in seen]
            notes += unmatched_note(name, environ[name], chosen)
            seen = tuple(seen[i] for i in chosen_positions(environ[name], chosen))
            by = name
    return Visible(seen, by, notes)


def chosen_positions(text: str, gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Return the positions that a list of indices, UUIDs and MIG UUIDs names.

    It ends at the first entry that names nothing; naming a device twice, by whatever name, means none; of several MIG
    slices only the first counts.
    """
    chosen: list[int] = []
    slices: list[str] = []
    for entry in map(str.strip, text.split(",")):
        position = position_of(entry, gpus)
        if position is None:
            break
        if entry.startswith("MIG-"):
            slices.append(entry)
            if len(slices) > 1:
                continue
        chosen.append(position)
    named_twice = len(set(chosen)) < len(chosen) or len(set(slices)) < len(slices)
    return () if named_twice else tuple(chosen)


def position_of(entry: str, gpus: Sequence[Gpu]) -> int | None:
    """Return the position of an index, a UUID or a unique prefix of one, or the parent of a MIG slice."""
    if entry.isascii() and entry.isdigit():
        return int(entry) if len(entry) < 6 and int(entry) < len(gpus) else None
    if entry.startswith("MIG-GPU-"):  # MIG-GPU-<uuid>/<gpu instance>/<compute instance>, of drivers before 470
        entry = entry.removeprefix("MIG-").partition("/")[0]
    if entry.startswith("MIG-"):
        return only_match(entry, [(i, uuid) for i, gpu in enumerate(gpus) for uuid in gpu.mig])
    if entry.startswith("GPU-"):
        return only_match(entry, [(i, gpu.uuid) for i, gpu in enumerate(gpus) if gpu.uuid])
    return None


def only_match(entry: str, named: Iterable[tuple[int, str]]) -> int | None:
    """Return the position with this UUID, else the only one whose UUID starts so, beyond the bare ``GPU-``."""
    wanted = entry.lower()
    near = [(i, uuid.lower()) for i, uuid in named if uuid.lower().startswith(wanted) and len(wanted) > len("GPU-")]
    exact = [(i, uuid) for i, uuid in near if uuid == wanted]
    found = exact or near
    return found[0][0] if len(found) == 1 else None


def unmatched_note(name: str, text: str, gpus: Sequence[Gpu]) -> tuple[Note, ...]:
    """Return the warning due where the list ends at a UUID that no GPU here is known to have."""
    for entry in map(str.strip, text.split(",")):
        if position_of(entry, gpus) is None:
            if not entry.startswith(("GPU-", "MIG-")):
                return ()
            return (note("visible-device-unknown", variable=name, entry=shortened(entry)),)
    return ()
