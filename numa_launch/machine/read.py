"""Read a whole machine from a root directory: the live one from ``/``, a captured one from its copy.

Example: ``read_machine("captured/dgx-a100").visible_gpus[0].node`` is 3.
It reads sys/devices/system/{node,cpu}, sys/bus/pci/devices, proc/cpuinfo, proc/self/{status,cgroup,numa_maps},
sys/fs/cgroup and proc/driver/nvidia/gpus. The vendor's library is asked where the machine is this one and has its GPUs;
in a capture, gpus.json is what it said, or driver.json why it did not. A plan needs no file of a single CPU, so they
are left to ``topology``.
"""

import os
import sys
from collections.abc import Mapping

from numa_launch.errors import MachineError, PlatformError
from numa_launch.idsets import format_ids, parse_ids
from numa_launch.machine.answers import Answer
from numa_launch.machine.archive import opened
from numa_launch.machine.files import read_value, top_of
from numa_launch.machine.gpu import Gpu
from numa_launch.machine.gpus import Ask, not_asked, read_gpus
from numa_launch.machine.limits import current_affinity, read_limits
from numa_launch.machine.model import Machine, Node
from numa_launch.machine.nodes import CPU, node_ids, read_distances, read_nodes, read_online_cpus
from numa_launch.machine.priority import read_priority_cpus
from numa_launch.machine.vendors import visible_gpus
from numa_launch.machine.vendors.vendor import Vendor
from numa_launch.reasons import Note, note


def read_machine(
    root: str | os.PathLike[str] = "/",
    *,
    vendor: str | None = None,
    environ: Mapping[str, str] | None = None,
    ask_driver: bool = True,
) -> Machine:
    """Return the machine whose /sys and /proc files stand below `root`, ``/`` being this one.

    `root` may also be a file that ``numa-launch capture`` made. `vendor` (nvidia, amd, intel) overrides whose GPUs
    count; `environ` (default: this process's) holds the variables that choose the visible ones. Without `ask_driver`
    PCI alone says what GPUs this machine has. Raises MachineError where there is no machine or its gpus.json or
    driver.json is broken, and PlatformError for ``/`` on another system than Linux. Any other file that cannot be read
    narrows what is known.
    """
    environ = os.environ if environ is None else environ
    if top_of(root):
        with opened(root) as top:
            return read_below(top, vendor, environ, None)
    require_linux()
    return read_below("", vendor, environ, driver_of("") if ask_driver else not_asked)


def driver_of(top: str) -> Ask:
    """Return what asks this host's vendor libraries, in masks that hold every CPU of the machine below `top`.

    A host without GPUs asks nobody, so nothing is imported or read for it before.
    """

    def ask(vendor: Vendor) -> Answer:
        from numa_launch.machine.driver import ask_driver

        possible = read_value(f"{top}{CPU}/possible", parse_ids) or frozenset()
        return ask_driver(vendor, highest_cpu=max(possible | read_online(top)))

    return ask


def read_below(top: str, vendor: str | None, environ: Mapping[str, str], ask: Ask | None) -> Machine:
    """Return the machine below `top` (``""``: this one), with the GPUs that `ask`, or else its gpus.json, tells of."""
    online = read_online(top)
    nodes = read_nodes(top, online)
    found = read_gpus(top, nodes, vendor, ask)
    visible = visible_gpus(found.gpus, environ)
    return Machine(
        nodes=nodes,
        online=online,
        limits=read_limits(top, online, environ),
        gpus=found.gpus,
        visible=visible.positions,
        visible_by=visible.by,
        priority_cpus=read_priority_cpus(top, online),
        distances={node: read_distances(top, node, nodes) for node in without_cpus(found.gpus, nodes)},
        has_node_directory=bool(node_ids(top)),
        gap=found.gap,
        notes=found.notes + visible.notes + overlap_note(nodes),
    )


def read_online(top: str) -> frozenset[int]:
    """Return the online CPUs; in a sandbox without /sys, which must not keep a worker from starting, all there are."""
    try:
        return read_online_cpus(top)
    except MachineError:
        if top:
            raise
        return current_affinity() or frozenset(range(os.cpu_count() or 1))


def require_linux() -> None:
    if sys.platform != "linux":
        raise PlatformError("numa-launch binds on Linux only")


def without_cpus(gpus: tuple[Gpu, ...], nodes: tuple[Node, ...]) -> set[int]:
    """Return the nodes without CPUs that a GPU names: only their distances are ever asked for."""
    return {gpu.node for gpu in gpus if gpu.node is not None} & {node.id for node in nodes if not node.cpus}


def overlap_note(nodes: tuple[Node, ...]) -> tuple[Note, ...]:
    """Return the warning due where a CPU is listed by several nodes, which only bad firmware does."""
    seen: set[int] = set()
    twice: set[int] = set()
    for node in nodes:
        twice |= node.cpus & seen
        seen |= node.cpus
    if not twice:
        return ()
    return (note("overlapping-nodes", cpus=format_ids(twice)),)
