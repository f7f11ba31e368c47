"""LaunchConfig: what it takes, how it names what it refuses, and what detection may leave on it."""

import copy
import dataclasses
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from numa_launch import ConfigError, LaunchConfig
from numa_launch.config import OPTIONS, launch_config

REFUSED: list[tuple[str, Any]] = [
    ("numa_bind", 1),
    ("numa_bind_nodes", []),
    ("numa_bind_nodes", [0, -1]),
    ("numa_bind_nodes", [0, "1"]),
    ("numa_bind_nodes", [True]),
    ("numa_bind_nodes", 0),
    ("numa_bind_cpus", []),
    ("numa_bind_cpus", "0-3"),
    ("numa_bind_cpus", [0]),
    *(("numa_bind_cpus", ["0", text]) for text in ("", " ", "abc", "1-", "4-1", "1,,2", "1:2", "١")),
    ("memory_policy", "bind"),
    ("strict", None),
    ("tensor_parallel_size", 0),
    ("pipeline_parallel_size", "2"),
    ("prefill_context_parallel_size", 1.0),
    ("data_parallel_size", True),
    ("data_parallel_size_local", -1),
    ("data_parallel_rank", -1),
    ("data_parallel_rank_local", "0"),
    ("data_parallel_external_lb", 1),
    ("nnodes", 0),
    ("distributed_executor_backend", "fork"),
    ("data_parallel_backend", "uni"),
    ("assigned_physical_gpu_ids", []),
    ("assigned_physical_gpu_ids", [-2]),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_a_refusal_names_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field) as caught:
        LaunchConfig(**{field: value})
    shown = value[-1] if field == "numa_bind_cpus" and isinstance(value, list) and value else value
    assert repr(shown) in str(caught.value) or repr(shown).strip("'") in str(caught.value)
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize(
    "values",
    [
        {"numa_bind_nodes": [0, 1], "numa_bind_cpus": ["0"]},
        {"numa_bind": False, "numa_bind_nodes": [0]},
        {"numa_bind": False, "numa_bind_cpus": ["0"]},
    ],
)
def test_contradictions_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LaunchConfig(**values)


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ({}, "auto"),
        ({"numa_bind": True}, "explicit"),
        ({"numa_bind": False}, "off"),
        ({"numa_bind_nodes": [0]}, "explicit"),
        ({"numa_bind_cpus": ["0-3,8"]}, "explicit"),
    ],
)
def test_mode(values: dict[str, Any], mode: str) -> None:
    assert LaunchConfig(**values).mode == mode


def test_a_refusal_of_a_long_value_is_short() -> None:
    with pytest.raises(ConfigError) as caught:
        LaunchConfig(numa_bind_nodes=[-1] * 100_000)
    assert len(str(caught.value)) < 250


def test_every_field_but_strict_names_its_option_and_is_documented() -> None:
    fields = {field.name for field in dataclasses.fields(LaunchConfig)}
    assert fields - OPTIONS.keys() == {"strict"}
    assert all(field in (LaunchConfig.__doc__ or "") for field in fields)


def test_the_world_has_all_shards_only_under_external_launcher() -> None:
    sizes: dict[str, Any] = {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 3,
        "prefill_context_parallel_size": 5,
        "data_parallel_size": 7,
    }
    assert LaunchConfig(**sizes).world_size == 30
    assert LaunchConfig(**sizes, distributed_executor_backend="external_launcher").world_size == 210


def test_what_detection_keeps_shows_nowhere_but_travels() -> None:
    plain, kept = LaunchConfig(), LaunchConfig()
    kept._numa_launch_detected = "found"  # type: ignore[attr-defined]
    assert plain == kept
    assert repr(plain) == repr(kept)
    assert vars(plain) == vars(kept)
    assert dataclasses.asdict(plain) == dataclasses.asdict(kept)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(kept, protocol))._numa_launch_detected == "found"
        assert pickle.loads(pickle.dumps(plain, protocol)) == plain
    assert copy.copy(kept)._numa_launch_detected == "found"  # type: ignore[attr-defined]


def test_a_foreign_config_is_read_by_its_names() -> None:
    theirs = SimpleNamespace(tensor_parallel_size=4, numa_bind_nodes=[0, 1], data_parallel_backend=None, other=1)
    config = launch_config(SimpleNamespace(parallel_config=theirs))
    assert config == LaunchConfig(tensor_parallel_size=4, numa_bind_nodes=[0, 1])


def test_a_foreign_executor_of_its_own_starts_workers_elsewhere() -> None:
    theirs = SimpleNamespace(distributed_executor_backend=SimpleNamespace)
    assert launch_config(SimpleNamespace(parallel_config=theirs)).distributed_executor_backend == "ray"


@pytest.mark.parametrize("wrong", [None, {}, 3, SimpleNamespace(parallel_config=None)])
def test_what_is_no_config_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="LaunchConfig"):
        launch_config(wrong)
