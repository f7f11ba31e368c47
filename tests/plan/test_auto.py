"""When auto mode stays unbound: each reason made, and the order of any two that hold at once."""

from collections.abc import Callable
from typing import Any

import pytest

from numa_launch import LaunchConfig, plan
from numa_launch.machine.model import Machine
from numa_launch.plan import decide
from numa_launch.plan.model import Circumstances, Process
from numa_launch.reasons import SKIP
from tests.lay import FOUR_GPUS, Description

Read = Callable[..., Machine]

# Each reason → what makes it: config, circumstances, machine.
MADE_BY: dict[str, tuple[dict[str, Any], dict[str, Any], Description]] = {
    "disabled": ({}, {"switched_off": "NUMA_LAUNCH_BIND=0"}, {}),
    "start-method": ({}, {"start_method": "fork"}, {}),
    "executor": ({"distributed_executor_backend": "ray"}, {}, {}),
    "device-ids": ({"assigned_physical_gpu_ids": [0]}, {}, {}),
    "numactl-missing": ({}, {"numactl_missing": True}, {}),
    "no-gpu": ({}, {}, {"gpus": []}),
    "single-node": ({}, {}, {"nodes": {"0": {"cpus": "0-15"}, "1": {"cpus": ""}}}),
    "affinity-constrained": ({}, {}, {"allowed_cpus": "0-14"}),
    "affinity-unknown": ({}, {}, {"allowed_cpus": "0-"}),
    "mempolicy-unknown": ({}, {}, {"policy": "12"}),
    "mempolicy-set": ({}, {}, {"policy": "interleave:0-1"}),
    "gpu-node-unknown": ({}, {}, {"gpus": [{"node": 0}, {"node": -1}]}),
    "gpu-index-out-of-range": ({"tensor_parallel_size": 9}, {}, {}),
    "node-without-cpus": ({}, {}, {"nodes": {**FOUR_GPUS["nodes"], "2": {"cpus": ""}}, "gpus": [{"node": 2}] * 4}),
    "cpus-not-allowed": ({}, {}, {"cpuset": "8-15"}),
}
ORDER = [code for code in SKIP if code != "probe-failed"]
INCOMPATIBLE = {
    frozenset({"affinity-constrained", "affinity-unknown"}),
    frozenset({"mempolicy-unknown", "mempolicy-set"}),
    frozenset({"no-gpu", "gpu-node-unknown"}),
    frozenset({"no-gpu", "node-without-cpus"}),
    frozenset({"single-node", "node-without-cpus"}),
    frozenset({"single-node", "cpus-not-allowed"}),
    frozenset({"gpu-node-unknown", "node-without-cpus"}),
    frozenset({"affinity-unknown", "cpus-not-allowed"}),
    frozenset({"device-ids", "gpu-index-out-of-range"}),
}


def reason_of(read: Read, *codes: str) -> str | None:
    config: dict[str, Any] = {}
    circumstances: dict[str, Any] = {}
    machine = dict(FOUR_GPUS)
    for code in codes:
        for into, of in zip((config, circumstances, machine), MADE_BY[code], strict=True):
            into.update(of)
    made = decide.plan(read(machine), LaunchConfig(**config), circumstances=Circumstances(**circumstances))
    assert not made.bound or made.skip_reason is None
    return made.skip_reason.code if made.skip_reason else None


def test_every_reason_can_be_made() -> None:
    assert MADE_BY.keys() == set(ORDER)


def test_without_any_it_binds(read: Read) -> None:
    made = plan(read(FOUR_GPUS), LaunchConfig(tensor_parallel_size=4))
    assert made.bound
    assert made.skip_reason is None


@pytest.mark.parametrize("code", ORDER)
def test_one_reason(read: Read, code: str) -> None:
    assert reason_of(read, code) == code


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (first, second)
        for i, first in enumerate(ORDER)
        for second in ORDER[i + 1 :]
        if frozenset({first, second}) not in INCOMPATIBLE
    ],
)
def test_of_two_reasons_the_first_in_order_is_given(read: Read, first: str, second: str) -> None:
    assert reason_of(read, second, first) == first


@pytest.mark.parametrize("machine", [{}, {"policy": "bind:0"}, {"gpus": []}, {"allowed_cpus": "0"}])
def test_explicit_mode_has_no_skip_reason(read: Read, machine: Description) -> None:
    made = plan(read({**FOUR_GPUS, **machine}), LaunchConfig(numa_bind_nodes=[0]))
    assert (made.mode, made.skip_reason) == ("explicit", None)


@pytest.mark.parametrize(
    ("machine", "bound"),
    [
        ({"cpuset": "2-11"}, True),
        ({"cpuset": "2-11", "allowed_cpus": "2-10"}, False),
        ({"isolated": "7", "allowed_cpus": "0-6,8-15"}, True),
        ({"isolated": "7", "allowed_cpus": "0-5,8-15"}, False),
        ({"online": "0-6,8-15", "allowed_cpus": "0-6,8-15"}, True),
        ({"online": "0-6,8-15", "allowed_cpus": "0-15"}, True),
        ({"allowed_cpus": "0-255"}, True),
    ],
)
def test_only_a_narrowing_below_the_cpuset_is_a_constraint(read: Read, machine: Description, bound: bool) -> None:
    assert plan(read({**FOUR_GPUS, **machine}), LaunchConfig(tensor_parallel_size=4)).bound == bound


def test_a_hidden_gpu_of_unknown_node_does_not_matter(read: Read) -> None:
    machine = {**FOUR_GPUS, "gpus": [{"node": 0}, {"node": -1}]}
    assert plan(read(machine, {"CUDA_VISIBLE_DEVICES": "0"}), LaunchConfig()).bound


def test_spreading_ranks_needs_no_gpu(read: Read) -> None:
    machine = read({**FOUR_GPUS, "gpus": [{"node": -1}]})
    circumstances = Circumstances(spread_ranks=4)
    assert decide.plan(machine, LaunchConfig(tensor_parallel_size=4), circumstances=circumstances).bound


def test_one_asked_about_process_is_bound_only_where_all_would_be(read: Read) -> None:
    machine = read({**FOUR_GPUS, "cpuset": "8-15"})
    last = Process("worker", 3)
    made = decide.plan(machine, LaunchConfig(tensor_parallel_size=4), processes=[last])
    assert made.skip_reason is not None
    assert made.skip_reason.code == "cpus-not-allowed"


def test_every_skip_reason_names_a_remedy() -> None:
    remedies = (
        "pass ",
        "lower ",
        "install ",
        "call ",
        "no binding is needed",
        "remove that",
        "start ",
        "lower ",
        "allow ",
        "{why}",
    )
    assert all(any(remedy in "".join(sentence) for remedy in remedies) for sentence in SKIP.values())
