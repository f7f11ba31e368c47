"""Cores, packages and L3 caches from the sibling lists."""

from pathlib import Path

import pytest

from numa_launch.machine.read import read_machine
from numa_launch.machine.topology import Topology, read_topology
from tests.lay import TWO_NODES, Description, lay, put


def topology_of(path: Path, description: Description) -> Topology:
    root = lay(path, description)
    return read_topology(root, read_machine(root, environ={}))


@pytest.mark.parametrize(
    ("siblings", "first"), [("none", {0}), ("adjacent", {0, 1}), ("split", {0, 8}), (["0,4,8,12"], {0, 4, 8, 12})]
)
def test_cores(tmp_path: Path, siblings: object, first: set[int]) -> None:
    assert topology_of(tmp_path, {**TWO_NODES, "siblings": siblings}).cores[0] == first


def test_offline_cpus_are_in_nothing(tmp_path: Path) -> None:
    topology = topology_of(tmp_path, {**TWO_NODES, "online": "0-6,8-15", "siblings": "adjacent", "l3": ["0-7", "8-15"]})
    assert topology.l3 == (frozenset(range(7)), frozenset(range(8, 16)))
    assert frozenset({6}) in topology.cores


def test_package_ids_as_sysfs_has_them_may_repeat(tmp_path: Path) -> None:
    root = lay(tmp_path, TWO_NODES)
    for cpu in range(16):
        put(root / f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", "-1")
    packages = read_topology(root, read_machine(root, environ={})).packages
    assert packages == ((-1, frozenset(range(8))), (-1, frozenset(range(8, 16))))


def test_packages_by_id_where_there_are_no_lists(tmp_path: Path) -> None:
    root = lay(tmp_path, TWO_NODES)
    for cpu in range(16):
        (root / f"sys/devices/system/cpu/cpu{cpu}/topology/core_siblings_list").unlink()
    packages = read_topology(root, read_machine(root, environ={})).packages
    assert packages == ((0, frozenset(range(8))), (1, frozenset(range(8, 16))))


def test_what_no_file_describes_is_left_out(tmp_path: Path) -> None:
    root = lay(tmp_path, TWO_NODES)
    for node in (0, 1):
        (root / f"sys/devices/system/node/node{node}/distance").unlink()
    topology = read_topology(root, read_machine(root, environ={}))
    assert topology.l3 == ()
    assert topology.distances == {0: {}, 1: {}}
