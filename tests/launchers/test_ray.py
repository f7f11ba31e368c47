"""Under Ray: every actor and task of a local cluster is where its own GPUs say, as the kernel shows it."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from numa_launch import ConfigError, LaunchConfig, StrictError
from numa_launch.idsets import parse_ids
from numa_launch.ray import bind_current_actor, runtime_env, setup_worker
from tests.host import ALL_ALLOWED, BOUND_TO_A, BOUND_TO_B, CPU_A, CPU_B, needs_memory_policy, node_of
from tests.launchers.started import HOW, ROOT, needs_two_cpus, on_two_nodes
from tests.live import needs_namespaces

ray = pytest.importorskip("ray", reason=f"Ray is missing: {HOW}")
pytestmark = [needs_two_cpus, needs_memory_policy]

PLACES = [([str(CPU_B)], BOUND_TO_B), ([str(CPU_A)], BOUND_TO_A)] * 2
"""CPUs of all threads, and the caller's memory policy, by the number of the GPU: as tests.launchers.actors asks."""

UNBOUND = ([ALL_ALLOWED], "default")


def cluster(scenario: str, *around: str) -> dict[str, Any]:
    """Return what a driver in tests.launchers.actors saw of its cluster, which ends with it."""
    command = [*around, sys.executable, "-m", "tests.launchers.actors", scenario]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def place(facts: dict[str, Any]) -> tuple[list[str], str]:
    return facts["cpus"], facts["policy"]


def over_two_nodes(facts: dict[str, Any]) -> bool:
    """Whether it has the CPUs of both lists and the memory of both their nodes."""
    (cpus,) = facts["cpus"]
    nodes = facts["policy"].removeprefix("bind:")
    return {CPU_A, CPU_B} <= parse_ids(cpus) and {node_of(CPU_A), node_of(CPU_B)} == parse_ids(nodes)


@pytest.fixture(scope="module")
def in_init() -> dict[str, Any]:
    return cluster("in_init")


class TestActorsThatBindThemselves:
    def test_each_is_where_its_own_gpu_says(self, in_init: dict[str, Any]) -> None:
        assert sorted(facts["gpus"] for facts in in_init["four"]) == [["0"], ["1"], ["2"], ["3"]]
        for facts in in_init["four"]:
            number = int(facts["gpus"][0])
            assert place(facts) == PLACES[number]
            assert facts["binding"][:3] == ["worker", number, number]
            assert facts["threads"] > 10

    def test_it_reports_the_threads_whose_memory_policy_stays(self, in_init: dict[str, Any]) -> None:
        for facts in in_init["four"]:
            (missed,) = facts["not_reached"]
            assert missed.endswith(" other threads, which started before")
            assert abs(int(missed.split()[3]) - facts["threads"]) < 4

    def test_it_stays_so_for_the_methods(self, in_init: dict[str, Any]) -> None:
        for made, later in zip(in_init["four"], in_init["later"], strict=True):
            assert (later["pid"], place(later)) == (made["pid"], place(made))

    def test_actors_that_share_a_gpu(self, in_init: dict[str, Any]) -> None:
        first, second = in_init["halves"]
        assert first["gpus"] == second["gpus"]
        assert place(first) == place(second) == PLACES[int(first["gpus"][0])]

    def test_an_actor_of_two_gpus_has_the_nodes_of_both(self, in_init: dict[str, Any]) -> None:
        facts = in_init["two_gpus"]
        assert len(facts["gpus"]) == 2
        assert facts["binding"][0] == "EngineCore"
        assert over_two_nodes(facts)

    def test_an_actor_without_gpus_stays_unbound(self, in_init: dict[str, Any]) -> None:
        assert place(in_init["no_gpu"]) == UNBOUND
        assert in_init["no_gpu"]["reasons"] == ["actor-without-gpu"]

    def test_the_policy_is_the_calling_threads_and_so_is_what_is_read(self, in_init: dict[str, Any]) -> None:
        """An actor with async methods is made outside the main thread."""
        facts = in_init["in_event_loop"]
        number = int(facts["gpus"][0])
        assert place(facts) == PLACES[number]
        assert facts["main_policy"] == "default"
        assert facts["handed_over"] == f"{PLACES[number][0][0]};{PLACES[number][1]};{ALL_ALLOWED};default"

    def test_a_task_binds_itself_too(self, in_init: dict[str, Any]) -> None:
        assert place(in_init["task"]) == PLACES[int(in_init["task"]["gpus"][0])]

    def test_a_list_without_an_entry_for_its_gpu_is_the_actors_error(self, in_init: dict[str, Any]) -> None:
        assert "numa_bind_cpus (--numa-cpus) has 1 entries" in in_init["past_the_end"]

    def test_the_driver_stays_unbound(self, in_init: dict[str, Any]) -> None:
        assert place(in_init["driver"]) == UNBOUND
        assert in_init["driver"]["reasons"] == ["ray-unknown"]

    def test_threads_that_ray_starts_later_for_methods(self) -> None:
        found = cluster("thread_pool")
        assert found["method"]["threads"] > found["made"]["threads"]
        assert place(found["made"]) == place(found["method"]) == PLACES[0]


@pytest.fixture(scope="module")
def by_hook() -> dict[str, Any]:
    return cluster("by_hook")


class TestTheHook:
    def test_every_actor_is_bound_by_its_place_in_the_list_that_ray_was_started_with(
        self, by_hook: dict[str, Any]
    ) -> None:
        listed = ["7", "GPU-1b2c", "5", "3"]
        assert {facts["gpus"][0]: place(facts) for facts in by_hook["four"]} == dict(zip(listed, PLACES, strict=True))
        assert place(by_hook["task"]) == PLACES[listed.index(by_hook["task"]["gpus"][0])]

    def test_two_gpus_and_none(self, by_hook: dict[str, Any]) -> None:
        assert len(by_hook["two_gpus"]["gpus"]) == 2
        assert over_two_nodes(by_hook["two_gpus"])
        assert place(by_hook["no_gpu"]) == UNBOUND

    def test_the_users_own_hook_runs_too(self, by_hook: dict[str, Any]) -> None:
        every = [*by_hook["four"], by_hook["two_gpus"], by_hook["no_gpu"], by_hook["task"]]
        assert {facts["user_hook"] for facts in every} == {"ran"}

    def test_a_worker_that_is_used_again_follows_its_gpus(self) -> None:
        seen = cluster("used_again")["seen"]
        assert [place(facts) for facts in seen] == [PLACES[int(facts["gpus"][0])] for facts in seen]
        served = {(facts["pid"], facts["gpus"][0]) for facts in seen}
        assert len({pid for pid, _ in served}) < len(served)

    def test_what_cannot_be_bound_ends_a_worker_only_where_that_is_asked_for(self) -> None:
        found = cluster("strictly")
        assert "no CPU of the CPU list 9999" in found["strict"]
        assert place(found["no_gpu"]) == place(found["lenient"]) == UNBOUND

    @needs_namespaces
    def test_without_options_to_the_node_of_its_gpu(self, tmp_path: Path) -> None:
        """GPU 0 is on node 1, GPU 1 on node 0, and Ray was told of one more than there are."""
        found = cluster("by_itself", *on_two_nodes(tmp_path / "root"))
        for way in ("each", "in_init"):
            assert {facts["visible"] for facts in found[way]} == {None}
            cpus = {facts["gpus"][0]: facts["cpus"] for facts in found[way]}
            assert cpus == {"0": [str(CPU_B)], "1": [str(CPU_A)], "2": [ALL_ALLOWED]}
        assert found["in_init"][2]["reasons"] == ["actor-gpu-unknown"]


@pytest.mark.parametrize("lacking", ["function", "module"])
def test_a_ray_without_the_function_that_the_hook_waits_for(
    lacking: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if lacking == "module":
        monkeypatch.setitem(sys.modules, "ray._private.utils", None)
    else:
        monkeypatch.delattr("ray._private.utils.set_visible_accelerator_ids")
    with caplog.at_level(logging.INFO):
        setup_worker()
    (said,) = caplog.messages
    assert "workers stay unbound: call numa_launch.ray.bind_current_actor" in said
    with pytest.raises(StrictError, match="workers stay unbound"):
        setup_worker(LaunchConfig(strict=True))


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMA_LAUNCH_BIND", "0")
    assert [reason.code for reason in bind_current_actor().binding.reasons] == ["disabled"]


def test_outside_ray_nothing_is_bound_and_strict_says_so() -> None:
    assert [reason.code for reason in bind_current_actor().binding.reasons] == ["ray-unknown"]
    with pytest.raises(StrictError, match="no worker of a Ray cluster"):
        bind_current_actor(LaunchConfig(numa_bind=True, strict=True))
    assert not ray.is_initialized()


def test_a_runtime_environment_keeps_what_else_is_in_it() -> None:
    made = runtime_env(env_vars={"A": "1"}, pip=["x"])
    assert callable(made.pop("worker_process_setup_hook"))
    assert made == {"env_vars": {"A": "1"}, "pip": ["x"]}
    with pytest.raises(ConfigError, match="a LaunchConfig or an object with a parallel_config"):
        runtime_env(7)
    for hook in ("f", ".f", "module."):
        with pytest.raises(ConfigError, match="worker_process_setup_hook"):
            runtime_env(worker_process_setup_hook=hook)


WITHOUT_RAY = """
import sys
import numa_launch.ray
assert "ray" not in sys.modules
sys.modules["ray"] = None
try:
    numa_launch.ray.bind_current_actor()
except numa_launch.ConfigError as error:
    print(error)
"""


def test_importing_loads_no_ray_and_without_it_use_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_RAY], capture_output=True, text=True)
    assert done.stdout == "Ray is not installed in this environment: pip install 'numa-launch[ray]'\n", done.stderr
