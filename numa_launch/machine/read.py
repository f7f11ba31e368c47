"""Read a whole machine from a root directory: the live one from ``/``, a captured one from its copy.

Example: ``read_machine("captured/dgx-a100").visible_gpus[0].node`` is 3.
It reads sys/devices/system/{node,cpu}, sys/bus/pci/devices, proc/cpuinfo, proc/self/{status,cgroup,numa_maps},
sys/fs/cgroup, proc/driver/nvidia/gpus and, in a capture, gpus.json: what the vendor's library said. A plan needs no
file of a single CPU, so they are left to ``topology``.
"""

import os
import sys
from collections.abc import Mapping

from numa_launch.errors import MachineError, PlatformError
from numa_launch.idsets import format_ids
from numa_launch.machine.files import top_of
from numa_launch.machine.gpus import read_gpus
from numa_launch.machine.limits import current_affinity, read_limits
from numa_launch.machine.model import Gpu, Machine, Node
from numa_launch.machine.nodes import node_ids, read_distances, read_nodes, read_online_cpus
from numa_launch.machine.priority import read_priority_cpus
from numa_launch.machine.visible import visible_gpus
from numa_launch.reasons import Note, note


def read_machine(
    root: str | os.PathLike[str] = "/", *, vendor: str | None = None, environ: Mapping[str, str] | None = None
) -> Machine:
    """Return the machine whose /sys and /proc files stand below `root`, ``/`` being this one.

    `vendor` (nvidia, amd, intel) overrides whose GPUs count; `environ` (default: this process's) holds the variables
    that choose the visible ones. Raises MachineError where there is no machine or its gpus.json is broken, and
    PlatformError for ``/`` on another system than Linux. Any other file that cannot be read narrows what is known.
    """
    environ = os.environ if environ is None else environ
    top = top_of(root)
    if not top:
        require_linux()
    elif not os.path.isdir(top):
        raise MachineError(f"{top} is no machine: it is not a directory")
    online = read_online(top)
    nodes = read_nodes(top, online)
    gpus = read_gpus(top, nodes, vendor)
    visible = visible_gpus(gpus, environ)
    return Machine(
        nodes=nodes,
        online=online,
        limits=read_limits(top, online, environ),
        gpus=gpus,
        visible=visible.positions,
        visible_by=visible.by,
        priority_cpus=read_priority_cpus(top, online),
        distances={node: read_distances(top, node, nodes) for node in without_cpus(gpus, nodes)},
        has_node_directory=bool(node_ids(top)),
        notes=visible.notes + overlap_note(nodes),
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
