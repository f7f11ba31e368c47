"""Which GPUs the framework in a worker will see, in its order, as CUDA, ROCm and Level Zero read their variables.

Example: ``visible_gpus(gpus, {"CUDA_VISIBLE_DEVICES": "3,1"})`` sees the positions (3, 1).
Sources: CUDA C Programming Guide (environment variables), ROCm documentation (GPU isolation), Level Zero
specification (ZE_AFFINITY_MASK).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from numa_launch.idsets import shortened
from numa_launch.machine.model import Gpu
from numa_launch.reasons import Note, note

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "CUDA_DEVICE_ORDER",
    "ZE_FLAT_DEVICE_HIERARCHY",
)
"""Every variable that this module reads."""


class Visible(NamedTuple):
    """Positions of the visible GPUs in the host's list; `by` is the variable that chose them, None: none is set."""

    positions: tuple[int, ...]
    by: str | None = None
    notes: tuple[Note, ...] = ()


def visible_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Visible:
    """Return which of the host's GPUs, all of one vendor, are visible under these variables."""
    everything = tuple(range(len(gpus)))
    if not gpus:
        return Visible(())
    if gpus[0].vendor == "intel":
        return visible_intel(everything, environ)
    if gpus[0].vendor == "amd":
        names = ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"]
        if "HIP_VISIBLE_DEVICES" not in environ:
            names[1] = "CUDA_VISIBLE_DEVICES"
        notes: tuple[Note, ...] = ()
    else:
        names = ["CUDA_VISIBLE_DEVICES"]
        notes = device_order_note(gpus, environ)
    seen, by = everything, None
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


def visible_intel(everything: tuple[int, ...], environ: Mapping[str, str]) -> Visible:
    """Return what ZE_AFFINITY_MASK leaves, in the host's order; ``x.y`` is device x, an empty mask leaves all."""
    mask = environ.get("ZE_AFFINITY_MASK", "").strip()
    if not mask:
        return Visible(everything)
    devices = {entry.strip().partition(".")[0] for entry in mask.split(",")}
    notes: tuple[Note, ...] = ()
    if environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "FLAT":
        notes = (note("ze-flat-hierarchy"),)
    return Visible(tuple(i for i in everything if str(i) in devices), "ZE_AFFINITY_MASK", notes)


def device_order_note(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Note, ...]:
    """Return the warning due where CUDA may count the fastest GPU first instead of in PCI order."""
    models = {gpu.name for gpu in gpus}
    if None in models:
        models = {gpu.device for gpu in gpus}
    if len(models) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return ()
    return (note("cuda-device-order"),)


def unmatched_note(name: str, text: str, gpus: Sequence[Gpu]) -> tuple[Note, ...]:
    """Return the warning due where the list ends at a UUID that no GPU here is known to have."""
    for entry in map(str.strip, text.split(",")):
        if position_of(entry, gpus) is None:
            if not entry.startswith(("GPU-", "MIG-")):
                return ()
            return (note("visible-device-unknown", variable=name, entry=shortened(entry)),)
    return ()
