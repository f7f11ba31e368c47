"""process_pool: each worker is bound as its rank, whenever and by whichever thread the standard library starts it."""

import dataclasses
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import pytest

from numa_launch import ConfigError, LaunchConfig, StrictError, configure_subprocess, process_pool
from numa_launch.apply.swap import ours_now, spawner
from tests.host import BOUND_TO_A, BOUND_TO_B, CPU_A, CPU_B, needs_numactl
from tests.launchers import pooled
from tests.vm.truth import allowed_cpus

TWO = LaunchConfig(numa_bind_cpus=[str(CPU_A), str(CPU_B)], tensor_parallel_size=2)
BOUND = {"0": (str(CPU_A), BOUND_TO_A), "1": (str(CPU_B), BOUND_TO_B)}
"""rank → the CPUs and the policy that the kernel is to show."""

needs_replacement = pytest.mark.skipif(sys.version_info < (3, 11), reason="max_tasks_per_child came with Python 3.11")


@pytest.fixture(autouse=True)
def everything_is_put_back() -> Iterator[None]:
    def now() -> tuple[Any, ...]:
        return spawn.get_executable(), ours_now(), list(spawner.open), spawner.is_held_here()

    before = now()
    yield
    assert now() == before


def are_bound_as_their_ranks(states: list[dict[str, Any]]) -> bool:
    return all((each["cpus"], each["policy"], each["wrap"]) == (*BOUND[each["rank"]], []) for each in states)


class Held:
    """A task that is under way, in the worker of `rank`, until it is released."""

    def __init__(self, pool: ProcessPoolExecutor, directory: Path) -> None:
        reached, self._release = directory / "reached", directory / "release"
        os.mkfifo(reached)
        os.mkfifo(self._release)
        self.future = pool.submit(pooled.state_held, str(reached), str(self._release))
        self.rank = reached.read_text()

    def release(self) -> None:
        self._release.write_text("")


@needs_numactl
@pytest.mark.parametrize("ranks", [2, range(2), [1, 0], iter((0, 1))])
def test_each_worker_is_bound_as_its_rank(ranks: Any, tmp_path: Path) -> None:
    with process_pool(TWO, ranks) as pool:
        held = Held(pool, tmp_path)
        other = pool.submit(pooled.state).result()
        held.release()
        states = [held.future.result(), other]
    assert are_bound_as_their_ranks(states)
    assert {state["rank"] for state in states} == {"0", "1"}


@needs_numactl
def test_a_pool_of_some_ranks() -> None:
    with process_pool(TWO, [1]) as pool:
        states = list(pool.map(pooled.state, range(3)))
    assert are_bound_as_their_ranks(states)
    assert {state["rank"] for state in states} == {"1"}


@needs_numactl
@needs_replacement
def test_a_replacement_has_the_rank_of_the_one_it_replaces(tmp_path: Path) -> None:
    with process_pool(TWO, 2, max_tasks_per_child=1) as pool:
        held = Held(pool, tmp_path)
        others = [future.result() for future in [pool.submit(pooled.state) for _ in range(3)]]
        held.release()
        states = [held.future.result(), *others]
    assert are_bound_as_their_ranks(states)
    assert [state["rank"] for state in others] == [{"0": "1", "1": "0"}[held.rank]] * 3
    assert len({state["pid"] for state in states}) == 4


@needs_numactl
@needs_replacement
@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_every_task_is_done_however_often_workers_are_replaced(tasks: int) -> None:
    with process_pool(TWO, 2, max_tasks_per_child=tasks) as pool:
        states = list(pool.map(pooled.state, range(7)))
    assert are_bound_as_their_ranks(states)
    done = [[state["pid"] for state in states].count(pid) for pid in {state["pid"] for state in states}]
    assert max(done) <= tasks


@needs_numactl
@needs_replacement
def test_one_worker_that_is_replaced_after_two_of_many_tasks() -> None:
    with process_pool(TWO, [1], max_tasks_per_child=2) as pool:
        states = [future.result() for future in [pool.submit(pooled.state) for _ in range(5)]]
    assert are_bound_as_their_ranks(states)
    assert len({state["pid"] for state in states}) == 3


@needs_replacement
def test_tasks_left_behind_by_a_shutdown_that_does_not_wait_are_failed(tmp_path: Path) -> None:
    pool = process_pool(LaunchConfig(numa_bind=False), 1, max_tasks_per_child=1)
    held = Held(pool, tmp_path)
    left = [pool.submit(pooled.state, bytes(100_000)) for _ in range(3)]
    pool.shutdown(wait=False)
    held.release()
    assert held.future.result()["rank"] == "0"
    for future in left:
        with pytest.raises(BrokenProcessPool, match=r"after shutdown\(wait=False\)"):
            future.result()


@needs_numactl
def test_after_a_crash_a_fresh_pool_has_the_same_ranks() -> None:
    with process_pool(TWO, [1, 0]) as pool:
        before = pool.submit(pooled.state).result()
        with pytest.raises(BrokenProcessPool):
            pool.submit(os._exit, 7).result()
        with pytest.raises(BrokenProcessPool):
            pool.submit(pooled.state)
    with process_pool(TWO, [1, 0]) as pool:
        after = pool.submit(pooled.state).result()
    assert are_bound_as_their_ranks([before, after])
    assert before["rank"] == after["rank"] == "1"


@needs_numactl
@pytest.mark.parametrize("outer", [None, "5"])
def test_local_rank_is_the_workers_alone(monkeypatch: pytest.MonkeyPatch, outer: str | None) -> None:
    if outer:
        monkeypatch.setenv("LOCAL_RANK", outer)
    with process_pool(TWO, [1]) as pool:
        assert pool.submit(pooled.state).result()["rank"] == "1"
        assert os.environ.get("LOCAL_RANK") == outer


@needs_numactl
def test_an_initializer_runs_once_in_each_worker_bound_already(tmp_path: Path) -> None:
    started = tmp_path / "started"
    with process_pool(TWO, 2, initializer=pooled.add_line, initargs=(str(started),)) as pool:
        held = Held(pool, tmp_path)
        other = pool.submit(pooled.state).result()
        held.release()
        states = [held.future.result(), other]
    lines = sorted(f"{state['rank']} {state['cpus']} {state['pid']}" for state in states)
    assert sorted(started.read_text().splitlines()) == lines


@needs_numactl
def test_workers_of_pools_and_of_blocks_in_other_threads_do_not_mix() -> None:
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()

    def start() -> None:
        for rank in (0, 1):
            with configure_subprocess(TWO, rank):
                process = context.Process(target=pooled.send_cpus, args=(results, rank))
                process.start()
            process.join()

    replaced: dict[str, Any] = {"max_tasks_per_child": 1} if sys.version_info >= (3, 11) else {}
    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    with process_pool(TWO, 2, **replaced) as one, process_pool(TWO, [1, 0], **replaced) as other:
        states = [*one.map(pooled.state, range(4)), *other.map(pooled.state, range(4))]
    for thread in threads:
        thread.join()
    assert are_bound_as_their_ranks(states)
    assert sorted(results.get() for _ in range(4)) == sorted([(0, str(CPU_A)), (1, str(CPU_B))] * 2)


def test_a_submit_inside_a_block_is_refused_as_both_could_wait_for_ever() -> None:
    with process_pool(TWO, 1) as pool, configure_subprocess(LaunchConfig(numa_bind=False), 0):
        with pytest.raises(ConfigError, match="outside configure_subprocess"):
            pool.submit(pooled.state)
        with pytest.raises(ConfigError, match="outside configure_subprocess"):
            pool.map(pooled.state, range(2))


def test_a_worker_that_cannot_be_started_breaks_the_pool_with_the_reason() -> None:
    with process_pool(TWO, [1], initializer=lambda: None) as pool:
        first = pool.submit(pooled.state)
        with pytest.raises(BrokenProcessPool, match=r"worker of rank 1 could not be started.*lambda") as caught:
            first.result()
        assert caught.value.__cause__ is not None
        with pytest.raises(BrokenProcessPool, match="worker of rank 1 could not be started"):
            pool.submit(pooled.state)


def test_a_worker_that_cannot_be_started_for_want_of_descriptors() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with process_pool(LaunchConfig(numa_bind=False), 1) as pool:
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            future = pool.submit(pooled.state)
            with pytest.raises(BrokenProcessPool, match="Too many open files"):
                future.result()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@needs_numactl
@needs_replacement
def test_a_replacement_that_cannot_be_started_breaks_the_pool_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process_pool(dataclasses.replace(TWO, backend="numactl"), 1, max_tasks_per_child=1) as pool:
        held = Held(pool, tmp_path)
        left = [pool.submit(pooled.state, bytes(100_000)) for _ in range(3)]
        monkeypatch.setenv("PATH", "/nowhere")
        held.release()
        assert held.future.result()["cpus"] == str(CPU_A)
        for future in left:
            with pytest.raises(BrokenProcessPool, match=r"rank 0 could not be started.*install the package numactl"):
                future.result()
        with pytest.raises(BrokenProcessPool, match="rank 0 could not be started"):
            pool.submit(pooled.state)


def use_up_the_worker(pool: ProcessPoolExecutor) -> None:
    """Have the only worker do its only task and end, so that the pool's thread watches none."""
    first = pool.submit(pooled.state)
    (worker,) = pool._processes.values()
    assert first.result()["rank"] == "0"
    worker.join()


@needs_numactl
@needs_replacement
def test_a_worker_that_cannot_be_started_while_the_pool_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with process_pool(dataclasses.replace(TWO, backend="numactl"), 1, max_tasks_per_child=1) as pool:
        use_up_the_worker(pool)
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(BrokenProcessPool, match="install the package numactl"):
            pool.submit(pooled.state).result(timeout=60)


@needs_replacement
def test_a_worker_that_dies_at_once_while_the_pool_has_none(tmp_path: Path) -> None:
    marker = tmp_path / "there"
    marker.touch()
    options: dict[str, Any] = {"initializer": os.unlink, "initargs": (str(marker),)}
    with process_pool(LaunchConfig(numa_bind=False), 1, max_tasks_per_child=1, **options) as pool:
        use_up_the_worker(pool)
        with pytest.raises(BrokenProcessPool):
            pool.submit(pooled.state).result(timeout=60)


def test_what_cannot_be_planned_is_refused_before_any_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="needs entry 2"):
        process_pool(TWO, 3)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="install the package numactl"):
        process_pool(dataclasses.replace(TWO, backend="numactl"), 2)


@needs_numactl
def test_strict_refuses_before_any_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numa_launch.apply.spawn.WRAPPER", str(tmp_path / "nowhere"))
    with pytest.raises(StrictError, match="may not be executed"):
        process_pool(dataclasses.replace(TWO, strict=True), 2)


def test_switched_off_the_workers_have_their_ranks_unbound() -> None:
    with process_pool(LaunchConfig(numa_bind=False), [3]) as pool:
        state = pool.submit(pooled.state).result()
    assert state["rank"] == "3"
    assert state["cpus"] == allowed_cpus("/proc/self")


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (0, "at least one"),
        ([], "at least one"),
        (-1, "number of ranks"),
        (10**9, "number of ranks"),
        (True, "number of ranks"),
        (1.5, "number of ranks"),
        ("01", "number of ranks"),
        (None, "number of ranks"),
        ([0, -1], "-1 must be a number from 0 on"),
        ([0, "1"], "'1' must be a number from 0 on"),
        ([False], "False must be a number from 0 on"),
        ([0, 1, 0], "0 is there more than once"),
    ],
)
def test_malformed_ranks_are_refused(ranks: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^ranks: .*{said}"):
        process_pool(TWO, ranks)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_other_start_methods_are_refused(method: str) -> None:
    with pytest.raises(ConfigError, match=f"mp_context: its workers are started by {method}.*bind_current_process"):
        process_pool(TWO, 2, mp_context=multiprocessing.get_context(method))


def test_spawn_may_be_named() -> None:
    with process_pool(LaunchConfig(numa_bind=False), 1, mp_context="spawn") as pool:
        assert pool.submit(abs, -1).result() == 1


@pytest.mark.parametrize("context", ["spam", 3, object()])
def test_what_is_no_context_is_refused(context: Any) -> None:
    with pytest.raises(ConfigError, match=r"context: .* must be a multiprocessing context"):
        process_pool(TWO, 2, mp_context=context)
    with pytest.raises(ConfigError, match=r"context: .* must be a multiprocessing context"):
        configure_subprocess(TWO, 0, context=context).__enter__()


@needs_numactl
def test_the_users_own_context_starts_its_own_processes() -> None:
    with process_pool(TWO, [1], mp_context=pooled.OwnContext()) as pool:
        assert pool.submit(pooled.run_by).result() == "OwnProcess"
        assert are_bound_as_their_ranks([pool.submit(pooled.state).result()])


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="Python 3.11 and newer have it")
def test_replacement_needs_a_newer_python() -> None:
    with pytest.raises(ConfigError, match=r"max_tasks_per_child: 1 needs Python 3\.11"):
        process_pool(TWO, 2, max_tasks_per_child=1)


def test_a_pool_that_nobody_holds_ends() -> None:
    pool: Any = process_pool(LaunchConfig(numa_bind=False), 1)
    assert pool.submit(pooled.state).result()["rank"] == "0"
    (worker,), thread = pool._processes.values(), pool._executor_manager_thread
    del pool
    thread.join(60)
    assert not thread.is_alive()
    assert worker.exitcode == 0


@needs_numactl
def test_a_worker_imports_nothing_of_ours(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
if __name__ == "__main__":
    from numa_launch import LaunchConfig, process_pool
    with process_pool(LaunchConfig(numa_bind_cpus=["{CPU_A}"]), 1) as pool:
        print(pool.submit(eval, "[m for m in __import__('sys').modules if m.startswith('numa_launch')]").result())
""")
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, program], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
