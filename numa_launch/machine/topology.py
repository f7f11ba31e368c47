"""Cores, packages, L3 caches and all distances: what ``topo`` shows and no plan needs.

Example: ``read_topology("captured/dgx-h100", machine).cores[0] == frozenset({0, 112})``.
It reads files of every CPU; source: kernel Documentation/admin-guide/cputopology.rst and
Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from numa_launch.machine.files import list_names, read_value, top_of
from numa_launch.machine.model import Machine
from numa_launch.machine.nodes import CPU, read_cpus, read_distances

IdSets = tuple[frozenset[int], ...]

CORE_FILES = ("thread_siblings", "core_cpus")
PACKAGE_FILES = ("core_siblings", "package_cpus")
"""The names of old and all kernels, then those that new ones prefer."""


class Topology(NamedTuple):
    """CPU sets, each sorted by first CPU; `packages` are (id, CPUs), `distances` node → node → SLIT."""

    cores: IdSets
    l3: IdSets
    packages: tuple[tuple[int | None, frozenset[int]], ...]
    distances: dict[int, dict[int, int]]


def read_topology(root: str | os.PathLike[str], machine: Machine) -> Topology:
    """Return the topology of a machine that read_machine read from the same root; what no file says is left out."""
    top = top_of(root)
    cpu_path = f"{top}{CPU}/cpu"
    return Topology(
        cores=partition(machine.online, lambda cpu: siblings(f"{cpu_path}{cpu}", CORE_FILES) or frozenset({cpu})),
        l3=partition(machine.online, lambda cpu: l3_of(f"{cpu_path}{cpu}")),
        packages=read_packages(cpu_path, machine.online),
        distances={node.id: read_distances(top, node.id, machine.nodes) for node in machine.nodes},
    )


def siblings(cpu_path: str, names: tuple[str, ...]) -> frozenset[int] | None:
    """Return the CPUs of the first of these lists, or of its mask, that the CPU's topology has."""
    lists = (read_cpus(f"{cpu_path}/topology", f"{name}_list", name) for name in names)
    return next((cpus for cpus in lists if cpus), None)


def read_packages(cpu_path: str, online: frozenset[int]) -> tuple[tuple[int | None, frozenset[int]], ...]:
    """Return the packages by their sibling lists: ids may repeat (-1 on s390); by id where there are no lists."""

    def package_id(cpu: int) -> int | None:
        return read_value(f"{cpu_path}{cpu}/topology/physical_package_id", int)

    groups = partition(online, lambda cpu: siblings(f"{cpu_path}{cpu}", PACKAGE_FILES))
    if groups:
        return tuple((package_id(min(cpus)), cpus) for cpus in groups)
    of_id: dict[int, set[int]] = {}
    for cpu in sorted(online):
        if (package := package_id(cpu)) is not None:
            of_id.setdefault(package, set()).add(cpu)
    return tuple((package, frozenset(cpus)) for package, cpus in of_id.items())


def l3_of(cpu_path: str) -> frozenset[int] | None:
    """Return the CPUs that share this CPU's L3 cache, None where no file describes one."""
    for index in reversed(list_names(f"{cpu_path}/cache")):
        if read_value(f"{cpu_path}/cache/{index}/level", str) == "3":
            return read_cpus(f"{cpu_path}/cache/{index}", "shared_cpu_list", "shared_cpu_map")
    return None


def partition(online: frozenset[int], group_of: Callable[[int], frozenset[int] | None]) -> IdSets:
    """Return the groups of the online CPUs, by first CPU; `group_of` is asked once a group, None leaves a CPU out."""
    groups: list[frozenset[int]] = []
    left = set(online)
    for cpu in sorted(online):
        if cpu in left:
            group = (group_of(cpu) or frozenset()) & left
            left -= group
            if group:
                groups.append(group)
    return tuple(sorted(groups, key=min))
