"""Nodes, CPUs and distances, from new and old kernels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numa_launch.errors import MachineError
from numa_launch.machine.model import Machine
from numa_launch.machine.nodes import numbered, total_kb
from numa_launch.machine.read import read_machine
from tests.lay import TWO_NODES, lay, put

Read = Callable[..., Machine]


def cpus_by_node(machine: Machine) -> dict[int, set[int]]:
    return {node.id: set(node.cpus) for node in machine.nodes}


@pytest.mark.parametrize(
    "old", [{}, {"no_cpulist": True}, {"no_online": True}, {"no_cpulist": True, "no_online": True}]
)
def test_old_kernels_say_the_same_as_new_ones(read: Read, old: dict[str, bool]) -> None:
    machine = read({**TWO_NODES, "online": "0-5,8-15", **old})
    assert cpus_by_node(machine) == {0: set(range(6)), 1: set(range(8, 16))}
    assert machine.online == frozenset(range(16)) - {6, 7}


def test_sparse_ids_and_interleaved_cpus(read: Read) -> None:
    machine = read({"nodes": {"0": {"cpus": "0,2,4"}, "8": {"cpus": "1,3,5"}, "252": {"cpus": ""}}})
    assert cpus_by_node(machine) == {0: {0, 2, 4}, 8: {1, 3, 5}, 252: set()}
    assert machine.nodes_with_cpus == (0, 8)
    assert machine.nodes_of(frozenset({3})) == (8,)


def test_no_node_directory_is_one_node(read: Read) -> None:
    machine = read({**TWO_NODES, "no_node_dir": True})
    assert cpus_by_node(machine) == {0: set(range(16))}
    assert not machine.has_node_directory


def test_memory(read: Read, tmp_path: Path) -> None:
    machine = read({"nodes": {"0": {"cpus": "0", "mem_mb": 1}, "1": {"cpus": "1", "mem_mb": 0}}})
    assert [node.memory_kb for node in machine.nodes] == [1024, 0]
    assert [machine.has_memory(node) for node in (0, 1)] == [True, False]


def test_memory_without_meminfo_is_unknown_but_for_has_memory(tmp_path: Path) -> None:
    root = lay(tmp_path, TWO_NODES)
    for node in (0, 1):
        (root / f"sys/devices/system/node/node{node}/meminfo").unlink()
    assert [node.memory_kb for node in read_machine(root, environ={}).nodes] == [None, None]
    put(root / "sys/devices/system/node/has_memory", "1")
    assert [node.memory_kb for node in read_machine(root, environ={}).nodes] == [0, None]


def test_a_list_cut_short_gives_way_to_the_mask(tmp_path: Path) -> None:
    root = lay(tmp_path, TWO_NODES)
    (root / "sys/devices/system/node/node1/cpulist").write_text("8-")
    assert cpus_by_node(read_machine(root, environ={}))[1] == set(range(8, 16))


def test_a_root_with_nodes_alone_has_their_cpus_online(tmp_path: Path) -> None:
    put(tmp_path / "sys/devices/system/node/node0/cpulist", "0-3")
    assert read_machine(tmp_path, environ={}).online == {0, 1, 2, 3}


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("")])
def test_a_root_that_is_no_machine_is_refused_in_one_sentence(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    root = tmp_path / "root"
    make(root)
    with pytest.raises(MachineError, match="no machine") as caught:
        read_machine(root)
    assert "\n" not in str(caught.value)


def test_distances_are_read_for_a_gpus_node_without_cpus_only(read: Read) -> None:
    row = {"0": 40, "1": 20, "2": 10}
    nodes = {"0": {"cpus": "0"}, "1": {"cpus": "1"}, "2": {"cpus": ""}}
    machine = read({"nodes": nodes, "distances": {"2": row}, "gpus": [{"node": 2}]})
    assert machine.distances == {2: {0: 40, 1: 20, 2: 10}}


def test_a_distance_row_that_does_not_fit_is_no_row(tmp_path: Path) -> None:
    root = lay(tmp_path, {"nodes": {"0": {"cpus": "0"}, "1": {"cpus": ""}}, "gpus": [{"node": 1}]})
    for text in ("10", "10 20 30", "10 x", "-1 10", ""):
        put(root / "sys/devices/system/node/node1/distance", text)
        assert read_machine(root, environ={}).distances == {1: {}}


def test_overlapping_nodes_are_noted_once(read: Read) -> None:
    machine = read({"nodes": {str(i): {"cpus": "0-3"} for i in range(3)}})
    assert [note.code for note in machine.notes] == ["overlapping-nodes"]


def test_numbered_takes_whole_numbers_only() -> None:
    assert numbered(["cpu10", "cpu2", "cpu", "cpufreq", "cpu01", "cpu-1", "cpu999999", "node1"], "cpu") == [2, 10]


def test_total_kb() -> None:
    assert total_kb("Node 0 MemFree: 1 kB\nNode 0 MemTotal:       65536 kB\n") == 65536
    with pytest.raises(ValueError, match="MemTotal"):
        total_kb("Node 0 MemTotal: lots kB")
