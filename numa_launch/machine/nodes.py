"""Nodes, online CPUs and distances, from ``sys/devices/system/{node,cpu}`` below any root.

Example: ``read_nodes("", read_online_cpus(""))`` on a two-node host gives nodes 0 and 1 with their online CPUs.
"""

import re

from numa_launch.errors import MachineError
from numa_launch.idsets import parse_ids, parse_mask, union
from numa_launch.machine.files import list_names, read_text, read_value
from numa_launch.machine.model import Node

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"


def read_cpus(path: str, list_name: str, mask_name: str) -> frozenset[int] | None:
    """Return the CPUs of a cpulist file, else of the mask that old kernels have, else None."""
    cpus = read_value(f"{path}/{list_name}", parse_ids)
    return read_value(f"{path}/{mask_name}", parse_mask) if cpus is None else cpus


def read_online_cpus(root: str) -> frozenset[int]:
    """Return the online CPUs; from each CPU's own ``online`` file where an old kernel has no list of them.

    Raises MachineError where the root has neither CPUs nor nodes.
    """
    online = read_value(f"{root}{CPU}/online", parse_ids)
    if online:
        return online
    ids = numbered(list_names(f"{root}{CPU}"), "cpu")
    if ids:
        return frozenset(i for i in ids if read_value(f"{root}{CPU}/cpu{i}/online", str) != "0")
    in_nodes = [read_cpus(f"{root}{NODE}/node{i}", "cpulist", "cpumap") for i in node_ids(root)]
    if not any(in_nodes):
        raise MachineError(f"{root or '/'} is no machine: it has no CPUs in sys/devices/system")
    return union(cpus for cpus in in_nodes if cpus)


def node_ids(root: str) -> list[int]:
    """Return the ids of the nodes that have a directory; none on a kernel without NUMA."""
    return numbered(list_names(f"{root}{NODE}"), "node")


def read_nodes(root: str, online: frozenset[int]) -> tuple[Node, ...]:
    """Return the nodes in id order, their CPUs ∩ online; one node 0 of all CPUs where there is no node directory."""
    with_memory = read_value(f"{root}{NODE}/has_memory", parse_ids)
    nodes = []
    for i in node_ids(root):
        cpus = read_cpus(f"{root}{NODE}/node{i}", "cpulist", "cpumap")
        memory_kb = read_value(f"{root}{NODE}/node{i}/meminfo", total_kb)
        if memory_kb is None and with_memory is not None and i not in with_memory:
            memory_kb = 0
        nodes.append(Node(i, (cpus or frozenset()) & online, memory_kb))
    return tuple(nodes) or (Node(0, online, None),)


def read_distances(root: str, node: int, nodes: tuple[Node, ...]) -> dict[int, int]:
    """Return the distance from `node` to each node (10 is itself), or nothing where no file says or it does not fit."""
    text = read_text(f"{root}{NODE}/node{node}/distance")
    row = (text or "").split()
    if len(row) != len(nodes) or not all(d.isascii() and d.isdigit() and len(d) < 10 for d in row):
        return {}
    return {other.id: int(distance) for other, distance in zip(nodes, row, strict=True)}


def total_kb(meminfo: str) -> int:
    """Return MemTotal of a node's meminfo, in KiB (``Node 0 MemTotal:  65536 kB``)."""
    found = re.search(r"MemTotal:\s*([0-9]{1,18}) kB", meminfo)
    if not found:
        raise ValueError("no MemTotal")
    return int(found[1])


def numbered(names: list[str], prefix: str) -> list[int]:
    """Return the numbers of names such as ``cpu12``, ascending; ``cpufreq`` and ``cpu012`` are none."""
    numbers = (name[len(prefix) :] for name in names if name.startswith(prefix))
    return sorted(int(n) for n in numbers if n.isascii() and n.isdigit() and len(n) <= 5 and str(int(n)) == n)
