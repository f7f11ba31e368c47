"""From nodes and CPU lists to what a process may really use, each change with its reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numa_launch import ConfigError, LaunchConfig, StrictError
from numa_launch.apply.numactl import numactl_args
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from numa_launch.plan.decide import plan
from numa_launch.plan.model import Binding, Circumstances, Process
from tests.lay import FOUR_GPUS, TWO_NODES, Description, lay

Read = Callable[..., Machine]
THREE_NODES = {"0": {"cpus": "0-3"}, "1": {"cpus": "4-7"}, "2": {"cpus": "8-11"}}
PRIORITY = {"cpu_model": "Xeon 6776P", "highest_perf": 46}


def planned(machine: Machine, config: LaunchConfig, kind: str = "worker", **values: Any) -> Binding:
    process = Process("EngineCore" if kind == "EngineCore" else "worker", **values)
    return plan(machine, config, processes=[process]).processes[0]


def args_and_codes(binding: Binding) -> tuple[list[str], list[str]]:
    return numactl_args(binding), [reason.code for reason in binding.reasons]


@pytest.mark.parametrize(
    ("machine", "args", "codes"),
    [
        (TWO_NODES, ["--cpunodebind=0", "--membind=0"], []),
        ({**TWO_NODES, "allowed_cpus": "0-2,4,8-15"}, ["--physcpubind=0-2,4", "--membind=0"], ["node-narrowed"]),
        ({**TWO_NODES, "cpuset": "4-15"}, ["--physcpubind=4-7", "--membind=0"], ["node-narrowed"]),
        ({**TWO_NODES, "online": "0-5,8-15"}, ["--cpunodebind=0", "--membind=0"], []),
        ({**TWO_NODES, "allowed_mems": "1"}, ["--physcpubind=0-7"], ["node-narrowed", "memory-not-allowed"]),
        ({**TWO_NODES, "no_node_dir": True}, ["--physcpubind=0-15"], ["no-node-directory"]),
        ({**TWO_NODES, "allowed_cpus": "8-15"}, [], ["cpus-not-allowed"]),
        (
            {"nodes": {"0": {"cpus": "0-7", "mem_mb": 0}, "1": {"cpus": "8-15"}}},
            ["--physcpubind=0-7"],
            ["node-narrowed", "node-without-memory"],
        ),
    ],
)
def test_a_worker_of_node_0(read: Read, machine: Description, args: list[str], codes: list[str]) -> None:
    assert args_and_codes(planned(read(machine), LaunchConfig(numa_bind_nodes=[0]))) == (args, codes)


@pytest.mark.parametrize(
    ("policy", "one", "several"),
    [
        ("auto", ["--membind=0"], ["--membind=0,2"]),
        ("membind", ["--membind=0"], ["--membind=0,2"]),
        ("preferred", ["--preferred=0"], ["--preferred-many=0,2"]),
        ("interleave", ["--interleave=0"], ["--interleave=0,2"]),
        ("none", [], []),
    ],
)
def test_memory_policy(read: Read, policy: Any, one: list[str], several: list[str]) -> None:
    config = LaunchConfig(numa_bind_nodes=[0, 2], tensor_parallel_size=2, memory_policy=policy)
    machine = read({"nodes": THREE_NODES})
    assert numactl_args(planned(machine, config))[1:] == one
    assert numactl_args(planned(machine, config, "EngineCore"))[1:] == several


def test_preferred_many_is_preferred_where_one_node_is_left(read: Read) -> None:
    machine = read({"nodes": THREE_NODES, "allowed_mems": "2"})
    config = LaunchConfig(numa_bind_nodes=[0, 2], tensor_parallel_size=2, memory_policy="preferred")
    args, codes = args_and_codes(planned(machine, config, "EngineCore"))
    assert args == ["--physcpubind=0-3,8-11", "--preferred=2"]
    assert codes == ["node-narrowed", "memory-not-allowed"]


def test_a_cpu_list_is_intersected_and_may_leave_its_node(read: Read) -> None:
    machine = read({**TWO_NODES, "allowed_cpus": "0-3,8"})
    config = LaunchConfig(numa_bind_nodes=[0], numa_bind_cpus=["8,2-5"])
    assert args_and_codes(planned(machine, config)) == (["--physcpubind=2-3,8", "--membind=0"], ["cpus-narrowed"])


def test_an_engine_core_covers_lists_that_leave_its_nodes(read: Read) -> None:
    config = LaunchConfig(numa_bind_nodes=[0], numa_bind_cpus=["2,9"])
    args, codes = args_and_codes(planned(read(TWO_NODES), config, "EngineCore"))
    assert args == ["--physcpubind=0-7,9", "--membind=0"]
    assert codes == ["covers-workers"]


def test_cpu_lists_without_nodes_take_their_gpus_node_for_memory(read: Read) -> None:
    binding = planned(read(FOUR_GPUS), LaunchConfig(numa_bind_cpus=["0", "1", "2"]), local_rank=2)
    assert numactl_args(binding) == ["--physcpubind=2", "--membind=1"]


def test_cpu_lists_past_the_gpus_take_the_nodes_of_their_cpus(read: Read) -> None:
    machine = read({**TWO_NODES, "gpus": [{"node": 0}, {"node": -1}]})
    config = LaunchConfig(numa_bind_cpus=["0", "9", "7-8"])
    assert numactl_args(planned(machine, config, local_rank=1)) == ["--physcpubind=9", "--membind=1"]
    assert numactl_args(planned(machine, config, local_rank=2)) == ["--physcpubind=7-8", "--membind=0,1"]


def test_priority_cores_where_a_node_has_usable_ones_else_its_usable_cpus(read: Read) -> None:
    nodes = {"0": {"cpus": "0-15"}, "1": {"cpus": "18-31"}}
    machine = read({"nodes": nodes, **PRIORITY})
    config = LaunchConfig(numa_bind_nodes=[0, 1], tensor_parallel_size=2)
    assert args_and_codes(planned(machine, config)) == (["--physcpubind=0-1", "--membind=0"], ["priority-cores"])
    assert args_and_codes(planned(machine, config, local_rank=1)) == (["--cpunodebind=1", "--membind=1"], [])
    engine = planned(machine, config, "EngineCore")
    assert numactl_args(engine) == ["--physcpubind=0-1,18-31", "--membind=0,1"]


def test_what_is_said_of_priority_cores_that_are_lost_is_true(read: Read) -> None:
    nodes = {"0": {"cpus": "0-15"}, "1": {"cpus": "16-31"}}
    machine = read({"nodes": nodes, **PRIORITY, "allowed_cpus": "0-15,18-31"})
    config = LaunchConfig(numa_bind_nodes=[0, 1], tensor_parallel_size=2)
    engine = planned(machine, config, "EngineCore")
    assert numactl_args(engine)[0] == "--physcpubind=0-1,18-31"
    (narrowed,) = [reason for reason in engine.reasons if reason.code == "node-narrowed"]
    assert "may not use 16-17 of them" in narrowed.message
    assert [reason.code for reason in planned(machine, config).reasons] == ["priority-cores"]


def test_an_engine_core_that_lost_its_nodes_but_not_its_lists(read: Read) -> None:
    machine = read({**TWO_NODES, "cpuset": "8-15"})
    config = LaunchConfig(numa_bind_nodes=[0], numa_bind_cpus=["8-9"])
    args, codes = args_and_codes(planned(machine, config, "EngineCore"))
    assert args[0] == "--physcpubind=8-9"
    assert codes == ["node-narrowed", "covers-workers"]


def test_nodes_whose_cpus_nobody_can_read(read: Read, tmp_path: Path) -> None:
    root = lay(tmp_path / "spoilt", {**TWO_NODES, "gpus": [{"node": 0}]})
    for node in (0, 1):
        for name in ("cpulist", "cpumap"):
            (root / f"sys/devices/system/node/node{node}/{name}").write_text("x")
    machine = read_machine(root, environ={})
    with pytest.raises(ConfigError, match="--numa-nodes"):
        plan(machine, LaunchConfig(numa_bind=True))
    assert plan(machine, LaunchConfig()).skip_reason


def test_priority_cores_that_may_not_be_used(read: Read) -> None:
    machine = read({"nodes": {"0": {"cpus": "0-31"}, "1": {"cpus": "32-63"}}, **PRIORITY, "allowed_cpus": "2-15,17"})
    config = LaunchConfig(numa_bind_nodes=[0])
    assert numactl_args(planned(machine, config))[0] == "--physcpubind=17"


def test_nearest_node(read: Read) -> None:
    nodes = {**THREE_NODES, "3": {"cpus": ""}}
    for row, nearest in (({"0": 30, "1": 20, "2": 20, "3": 10}, 1), ({"0": 20, "1": 20, "2": 20, "3": 10}, 0)):
        machine = read({"nodes": nodes, "distances": {"3": row}, "gpus": [{"node": 3}]})
        binding = planned(machine, LaunchConfig(numa_bind=True))
        assert (binding.nodes, [reason.code for reason in binding.reasons]) == ((nearest,), ["nearest-node"])


def test_nearest_node_without_distances_is_the_lowest(read: Read) -> None:
    machine = read({"nodes": {**THREE_NODES, "3": {"cpus": ""}}, "gpus": [{"node": 3}]})
    object.__setattr__(machine, "distances", {3: {}})
    assert planned(machine, LaunchConfig(numa_bind=True)).nodes == (0,)


@pytest.mark.parametrize("values", [{"numa_bind_nodes": [0, 0, 1, 1]}, {"numa_bind": True}, {}])
def test_strict_refuses_where_nothing_may_be_used(read: Read, values: dict[str, Any]) -> None:
    machine = read({**FOUR_GPUS, "cpuset": "8-15"})
    with pytest.raises(StrictError, match="node 0"):
        plan(machine, LaunchConfig(strict=True, tensor_parallel_size=4, **values))


def test_explicit_warns_for_each_process_that_may_use_nothing(read: Read) -> None:
    made = plan(read({**FOUR_GPUS, "cpuset": "8-15"}), LaunchConfig(numa_bind=True, tensor_parallel_size=4))
    assert [binding.bound for binding in made.processes] == [True, False, False, True, True]
    assert {warning.code for warning in made.warnings} == {"cpus-not-allowed"}


@pytest.mark.parametrize(
    ("values", "process", "texts"),
    [
        ({"numa_bind_nodes": [0, 1]}, Process("worker", 2), ["--numa-nodes", "entry 2", "has 2 entries"]),
        ({"numa_bind_cpus": ["0"]}, Process("worker", 1), ["--numa-cpus", "entry 1", "has 1 entries"]),
        ({"numa_bind": True}, Process("worker", 4), ["entry 4", "4 GPUs"]),
        ({"numa_bind": True}, Process("EngineCore", dp_local_rank=9), ["shard 9", "entry 9", "4 GPUs"]),
        (
            {"numa_bind": True, "assigned_physical_gpu_ids": [2, 3]},
            Process("worker", 2),
            ["entry 2", "--device-ids", "2 entries"],
        ),
        ({"numa_bind": True, "assigned_physical_gpu_ids": [2, 7]}, Process("worker", 1), ["names 7", "4 GPUs"]),
    ],
)
def test_an_index_past_the_end_is_named(read: Read, values: dict[str, Any], process: Process, texts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(read(FOUR_GPUS), LaunchConfig(**values), processes=[process])
    assert all(text in str(caught.value) for text in texts), caught.value


def test_a_gpu_index_counts_the_assigned_gpus(read: Read) -> None:
    config = LaunchConfig(numa_bind=True, assigned_physical_gpu_ids=[3, 0], tensor_parallel_size=2)
    assert [binding.nodes for binding in plan(read(FOUR_GPUS), config).processes] == [(0, 1), (1,), (0,)]


def test_assigned_gpus_number_the_entries_of_lists(read: Read) -> None:
    config = LaunchConfig(numa_bind_nodes=[0, 0, 0, 1], assigned_physical_gpu_ids=[3], tensor_parallel_size=1)
    assert plan(read(FOUR_GPUS), config).processes[1].nodes == (1,)


@pytest.mark.parametrize("gpus", [[], [{"node": -1}]])
def test_explicit_without_known_nodes_names_the_option(read: Read, gpus: list[dict[str, int]]) -> None:
    with pytest.raises(ConfigError, match="--numa-nodes"):
        plan(read({**TWO_NODES, "gpus": gpus}), LaunchConfig(numa_bind=True))


@pytest.mark.parametrize(
    ("ranks", "nodes"),
    [
        (3, [(0,), (1,), (2,)]),
        (6, [(0,), (0,), (1,), (1,), (2,), (2,)]),
        (4, [(0,), (0,), (1,), (2,)]),
        (2, [(0,), (1, 2)]),
        (1, [(0, 1, 2)]),
    ],
)
def test_ranks_spread_over_the_nodes(read: Read, ranks: int, nodes: list[tuple[int, ...]]) -> None:
    config = LaunchConfig(numa_bind=True, tensor_parallel_size=ranks)
    made = plan(read({"nodes": THREE_NODES}), config, circumstances=Circumstances(spread_ranks=ranks))
    assert [binding.nodes for binding in made.processes[1:]] == nodes
    assert {binding.gpu_index for binding in made.processes} == {None}


def test_ranks_spread_over_nodes_with_usable_cpus_only(read: Read) -> None:
    machine = read({"nodes": THREE_NODES, "cpuset": "0-3,9"})
    config = LaunchConfig(numa_bind=True, tensor_parallel_size=2)
    made = plan(machine, config, circumstances=Circumstances(spread_ranks=2))
    assert [binding.nodes for binding in made.processes] == [(0, 2), (0,), (2,)]


def test_the_only_visible_gpu_is_the_ranks_but_longer_lists_count_ranks(read: Read) -> None:
    machine = read(FOUR_GPUS, {"CUDA_VISIBLE_DEVICES": "3"})
    process = Process("worker", 2, 0, takes_only_gpu=True)
    for config, nodes in (
        (LaunchConfig(numa_bind=True), (1,)),
        (LaunchConfig(numa_bind_nodes=[0]), (0,)),
        (LaunchConfig(numa_bind_nodes=[1, 1, 0]), (0,)),
    ):
        binding = plan(machine, config, processes=[process]).processes[0]
        assert (binding.gpu_index, binding.nodes) == (0, nodes)
