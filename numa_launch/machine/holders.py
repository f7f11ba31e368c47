"""Which processes hold which GPU, as the vendor's driver says.

Example: ``gpu_holders(read_machine()).positions`` is ``{4711: (0,), 4712: (1,)}`` where two workers have a GPU each.
"""

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from numa_launch.machine.model import Machine
from numa_launch.machine.vendors import VENDORS
from numa_launch.machine.vendors.vendor import Library, Vendor


class Holders(NamedTuple):
    """By PID, the positions in ``machine.gpus`` of the GPUs that the process holds, ascending.

    The PIDs are as the driver says them: in a container it may say none, or those of the host. `problem` says why
    some may be missing: ``"NVML: it gave no answer in 10 s: …"``; None where the driver answered, or none is there.
    """

    positions: Mapping[int, tuple[int, ...]]
    problem: str | None = None


def gpu_holders(machine: Machine) -> Holders:
    """Return the processes that hold the GPUs of this host, which `machine` is; the driver is asked each time.

    Nobody is asked without GPUs, or without their driver. One that hangs takes ten seconds.
    """
    return holders_below("", machine)


def holders_below(top: str, machine: Machine) -> Holders:
    """Return them for the host whose driver's files are below `top`, ``""`` being this one."""
    held: dict[int, set[int]] = {}
    problems: dict[str, None] = {}  # each once, in their order
    position_of = {gpu.bdf: position for position, gpu in enumerate(machine.gpus) if gpu.bdf}
    for library, vendor in libraries(top, machine):
        from numa_launch.machine.driver import ask_processes

        answer = ask_processes(vendor)
        gpus = answer.gpus or ()
        for problem in (answer.problem, *(gpu.problem for gpu in gpus)):
            if problem:
                problems[f"{library.name}: {problem}"] = None
        for gpu in gpus:
            if gpu.bdf in position_of:
                for pid in gpu.pids:
                    held.setdefault(pid, set()).add(position_of[gpu.bdf])
    return Holders({pid: tuple(sorted(held[pid])) for pid in sorted(held)}, "; ".join(problems) or None)


def libraries(top: str, machine: Machine) -> Iterator[tuple[Library, Vendor]]:
    """Yield the library of each vendor that has a GPU in the machine and whose driver is there."""
    for name in dict.fromkeys(gpu.vendor for gpu in machine.gpus):
        vendor = VENDORS.get(name or "")
        if vendor and vendor.library and any(os.path.lexists(f"{top}{sign}") for sign in vendor.library.signs):
            yield vendor.library, vendor
