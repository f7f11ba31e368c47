"""GPUs as their driver describes them in files: a capture's ``gpus.json`` and ``/proc/driver/nvidia/gpus``.

Example: ``read_gpus_json("captured/dgx-h100")`` gives what NVML said on that host, or None where no file is there.
"""

import os
from typing import Any, NamedTuple

from numa_launch.errors import MachineError
from numa_launch.idsets import parse_ids
from numa_launch.machine.files import list_names, read_text
from numa_launch.machine.pci import normal_bdf, pci_order


class DriverGpu(NamedTuple):
    """A GPU as its vendor's library describes it; what it does not know is None."""

    bdf: str | None
    uuid: str | None = None
    name: str | None = None
    numa_node: int | None = None
    cpu_affinity: frozenset[int] | None = None
    mig: tuple[str, ...] = ()


def read_gpus_json(root: str) -> tuple[DriverGpu, ...] | None:
    """Return the GPUs of the capture's gpus.json in PCI order, None where there is none.

    Raises MachineError, one sentence, where the file is broken: a guess at the GPUs would bind to the wrong nodes.
    """
    path = f"{root}/gpus.json"
    if not root or not os.path.lexists(path):
        return None
    import json

    text = read_text(path)
    if text is None:
        raise MachineError(f"{path} cannot be read")
    try:
        entries = json.loads(text)
        if not isinstance(entries, list):
            raise ValueError("it is not a list")
        gpus = [(field(entry, "index", int), driver_gpu(entry)) for entry in entries]
    except (ValueError, RecursionError) as error:
        raise MachineError(f"{path} is broken: {' '.join(str(error).split())}") from None
    if all(gpu.bdf for _, gpu in gpus):
        gpus.sort(key=lambda gpu: pci_order(gpu[1].bdf or ""))
    elif all(index is not None for index, _ in gpus):
        gpus.sort(key=lambda gpu: gpu[0] or 0)
    return tuple(gpu for _, gpu in gpus)


def driver_gpu(entry: Any) -> DriverGpu:
    """Return one entry of gpus.json; raises ValueError naming the key whose value has the wrong type."""
    bdf, cpus = field(entry, "bdf", str), field(entry, "cpu_affinity", str)
    mig = field(entry, "mig", list) or []
    if not all(isinstance(uuid, str) for uuid in mig):
        raise ValueError("mig is not a list of texts")
    return DriverGpu(
        bdf=None if bdf is None else normal_bdf(bdf),
        uuid=field(entry, "uuid", str),
        name=printable(field(entry, "name", str)),
        numa_node=field(entry, "numa_node", int),
        cpu_affinity=None if cpus is None else parse_ids(cpus),
        mig=tuple(mig),
    )


def field(entry: Any, key: str, kind: type) -> Any:
    if not isinstance(entry, dict):
        raise ValueError("an entry is not an object")
    value = entry.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ValueError(f"{key} is {value!r}")
    return value


def printable(name: str | None) -> str | None:
    """Return the name without what would move a terminal's cursor or cannot be printed at all."""
    return name and "".join(c if c.isprintable() else "?" for c in name)


def read_nvidia_proc(root: str) -> dict[str, tuple[str | None, str | None]]:
    """Return PCI address → (UUID, model) of ``proc/driver/nvidia/gpus/*/information``, None where it has none."""
    said = {}
    directory = f"{root}/proc/driver/nvidia/gpus"
    for name in list_names(directory):
        lines = (read_text(f"{directory}/{name}/information") or "").splitlines()
        values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        uuid = values.get("GPU UUID", "")
        try:
            # Before the first use of a GPU its UUID reads GPU-????????-....
            said[normal_bdf(name)] = (
                uuid if uuid and "?" not in uuid else None,
                printable(values.get("Model")) or None,
            )
        except ValueError:
            continue
    return said
