"""What a vendor's library answered: parsed from the JSON of a child that asked, or of a capture.

Example: ``read_answer("captured/dgx-h100")[0].gpus`` is what NVML said on that host, None where no file is there.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from numa_launch.errors import MachineError
from numa_launch.idsets import format_ids, parse_ids, shortened
from numa_launch.machine.files import printable, read_text
from numa_launch.machine.pci import normal_bdf
from numa_launch.machine.vendors import VENDORS
from numa_launch.machine.vendors.vendor import DriverGpu

T = TypeVar("T")

GPUS_FILE = "gpus.json"
SILENCE_FILE = "driver.json"
"""Files of a capture: what the library said, and why it did not say it."""

MOST_GPUS = 512
"""No host has as many; each may come with CPUs that fill a megabyte."""

PID_LIMIT = 1 << 22
"""No kernel gives a PID so high (PID_MAX_LIMIT, kernel include/linux/threads.h)."""


class Answer(NamedTuple):
    """The library's GPUs by index, or None and the `problem`, if there is one, that it was asked and said nothing.

    A problem that is not `serious` only means that nobody installed what asks it.
    """

    gpus: tuple[DriverGpu, ...] | None = None
    problem: str | None = None
    serious: bool = False


class GpuProcesses(NamedTuple):
    """A GPU's PCI address and the PIDs on it, as its vendor's library says them; `problem` as in a DriverGpu."""

    bdf: str | None
    pids: tuple[int, ...] = ()
    problem: str | None = None


class ProcessAnswer(NamedTuple):
    """What the library says of the processes on each GPU, or None and the `problem`, if there is one, as in Answer."""

    gpus: tuple[GpuProcesses, ...] | None = None
    problem: str | None = None


def read_answer(root: str) -> tuple[Answer, str | None]:
    """Return what the capture below `root` has of its library's answer, and of which vendor where it is none.

    Raises MachineError, one sentence, where a file is broken: a guess at the GPUs would bind to the wrong nodes.
    """
    gpus = read_json(f"{root}/{GPUS_FILE}", parse_gpus)
    if gpus is not None:
        return Answer(gpus), None
    return read_json(f"{root}/{SILENCE_FILE}", parse_silence) or (Answer(), None)


def read_json(path: str, parse: Callable[[Any], T]) -> T | None:
    """Return what `parse` makes of the JSON file, None where there is none; raises MachineError where it is broken."""
    if not os.path.lexists(path):
        return None
    import json

    text = read_text(path)
    if text is None:
        raise MachineError(f"{path} cannot be read")
    try:
        return parse(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise MachineError(f"{path} is broken: {' '.join(str(error).split())}") from None


def parse_gpus(entries: Any) -> tuple[DriverGpu, ...]:
    """Return the GPUs by index; raises ValueError for what is no list of such."""
    if not isinstance(entries, list):
        raise ValueError("it is not a list")
    if len(entries) > MOST_GPUS:
        raise ValueError(f"it lists more than {MOST_GPUS} GPUs")
    gpus = [(field(entry, "index", int), driver_gpu(entry)) for entry in entries]
    if all(index is not None for index, _ in gpus):
        gpus.sort(key=lambda gpu: gpu[0] or 0)
    return tuple(gpu for _, gpu in gpus)


def parse_processes(entries: Any) -> tuple[GpuProcesses, ...]:
    """Return the processes on each GPU, without PIDs that none can have; raises ValueError for what is no such list.

    A library may give 0 or nonsense for a process of another PID namespace.
    """
    if not isinstance(entries, list):
        raise ValueError("it is not a list")
    return tuple(gpu_processes(entry) for entry in entries)


def gpu_processes(entry: Any) -> GpuProcesses:
    bdf, pids = field(entry, "bdf", str), field(entry, "pids", list) or []
    if not all(type(pid) is int for pid in pids):
        raise ValueError("pids is not a list of numbers")
    return GpuProcesses(
        bdf=None if bdf is None else normal_bdf(bdf),
        pids=tuple(pid for pid in pids if 0 < pid < PID_LIMIT),
        problem=printable(field(entry, "problem", str)),
    )


def parse_silence(entry: Any) -> tuple[Answer, str]:
    """Return why the library of a vendor said nothing; raises ValueError where vendor or reason are missing."""
    vendor = field(entry, "vendor", str)
    if vendor not in VENDORS:
        raise ValueError("it names no vendor")
    return parse_problem(entry), vendor


def parse_problem(entry: Any) -> Answer:
    """Return the answer that is none; raises ValueError where it does not say why."""
    problem = printable(field(entry, "problem", str))
    if not problem:
        raise ValueError("it names no problem")
    return Answer(None, problem, bool(field(entry, "serious", bool)))


def driver_gpu(entry: Any) -> DriverGpu:
    """Return one GPU; raises ValueError naming the key whose value has the wrong type."""
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
        problem=printable(field(entry, "problem", str)),
        vendor=field(entry, "vendor", str),
    )


def field(entry: Any, key: str, kind: type) -> Any:
    if not isinstance(entry, dict):
        raise ValueError("an entry is not an object")
    value = entry.get(key)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise ValueError(f"{key} is {shortened(value) if isinstance(value, str) else str(value)[:60]}")
    return value


def gpus_json(gpus: Iterable[DriverGpu], vendor: str) -> list[dict[str, Any]]:
    """Return a vendor's GPUs as gpus.json has them; `parse_gpus` reads them back."""
    return [
        {
            **gpu._asdict(),
            "index": index,
            "vendor": vendor,
            "cpu_affinity": None if gpu.cpu_affinity is None else format_ids(gpu.cpu_affinity),
        }
        for index, gpu in enumerate(gpus)
    ]
