"""Which gpu index a worker has, by every combination of the parallel sizes that the formula tells apart."""

from typing import Any

import pytest

from numa_launch import ConfigError, LaunchConfig
from numa_launch.plan.model import Process
from numa_launch.plan.ranks import (
    gpu_index,
    local_processes,
    local_shards,
    nnodes_within_dp,
    shard_indices,
    workers_per_shard,
)


def config(**values: Any) -> LaunchConfig:
    names = {
        "tp": "tensor_parallel_size",
        "pp": "pipeline_parallel_size",
        "dp": "data_parallel_size",
        "local": "data_parallel_size_local",
        "rank": "data_parallel_rank",
        "rank_local": "data_parallel_rank_local",
        "lb": "data_parallel_external_lb",
        "executor": "distributed_executor_backend",
        "backend": "data_parallel_backend",
    }
    return LaunchConfig(**{names.get(name, name): value for name, value in values.items()})


@pytest.mark.parametrize(
    ("values", "within"),
    [
        ({}, 1),
        ({"dp": 4}, 1),
        ({"nnodes": 2}, 2),
        ({"nnodes": 2, "dp": 2}, 1),
        ({"nnodes": 4, "dp": 2}, 2),
        ({"nnodes": 2, "dp": 4, "local": 2}, 1),
        ({"nnodes": 4, "dp": 4, "local": 2}, 2),
        ({"nnodes": 2, "dp": 8, "lb": True}, 1),
        ({"nnodes": 3, "dp": 2, "lb": True}, 1),
    ],
)
def test_hosts_within_a_shard(values: dict[str, Any], within: int) -> None:
    assert nnodes_within_dp(config(**values)) == within


@pytest.mark.parametrize("values", [{"nnodes": 3, "dp": 2}, {"nnodes": 2, "dp": 8}, {"nnodes": 2, "local": 2}])
def test_hosts_that_do_not_divide_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="nnodes"):
        nnodes_within_dp(config(**values))


@pytest.mark.parametrize(
    ("values", "local_rank", "shard", "index"),
    [
        ({"tp": 2}, 1, None, 1),
        ({"tp": 2, "dp": 4, "local": 4}, 1, 3, 7),
        ({"tp": 2, "pp": 2, "dp": 2, "local": 2}, 3, 1, 7),
        ({"tp": 2, "rank": 3}, 0, None, 6),
        ({"tp": 2, "rank": 3, "rank_local": 1}, 0, None, 2),
        ({"tp": 2, "rank": 3, "rank_local": 1}, 0, 0, 0),
        ({"tp": 2, "executor": "ray"}, 1, 3, 1),
        ({"tp": 2, "executor": "external_launcher"}, 5, 3, 5),
        ({"tp": 2, "backend": "ray"}, 1, 3, 1),
        ({"tp": 16, "nnodes": 2}, 5, 1, 5),
        ({"tp": 2, "executor": "uni"}, 0, 1, 2),
    ],
)
def test_index(values: dict[str, Any], local_rank: int, shard: int | None, index: int) -> None:
    assert gpu_index(config(**values), local_rank, shard) == index


@pytest.mark.parametrize(
    ("values", "shard", "indices"),
    [
        ({"tp": 2}, 1, range(2, 4)),
        ({"tp": 2, "pp": 3}, 0, range(6)),
        ({"tp": 2, "executor": "ray"}, 0, None),
        ({"tp": 16, "nnodes": 2}, 0, None),
    ],
)
def test_a_shards_indices(values: dict[str, Any], shard: int, indices: range | None) -> None:
    assert shard_indices(config(**values), shard) == indices


@pytest.mark.parametrize(
    ("values", "shards"),
    [
        ({}, [0]),
        ({"dp": 4, "local": 2}, [0, 1]),
        ({"dp": 4, "local": 2, "rank": 2}, [0, 1]),
        ({"dp": 4, "local": 4, "rank_local": 3}, [3]),
        ({"dp": 4, "rank": 2}, [2]),
        ({"dp": 4, "local": 4, "executor": "external_launcher"}, [0]),
    ],
)
def test_the_shards_of_this_host(values: dict[str, Any], shards: list[int]) -> None:
    assert local_shards(config(**values)) == shards


def test_the_processes_of_this_host_in_order() -> None:
    assert local_processes(config(tp=2, dp=2, local=2)) == [
        Process("EngineCore", dp_local_rank=0),
        Process("EngineCore", dp_local_rank=1),
        Process("worker", 0, 0),
        Process("worker", 1, 0),
        Process("worker", 0, 1),
        Process("worker", 1, 1),
    ]
    assert local_processes(config(tp=2, executor="external_launcher")) == [Process("worker", i, 0) for i in (0, 1)]


def test_a_shard_over_two_hosts_has_half_its_workers_here() -> None:
    assert workers_per_shard(config(tp=16, nnodes=2)) == 8
