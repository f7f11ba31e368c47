"""configure_subprocess: real spawns through real numactl, and every trap of swapping multiprocessing's executable.

The traps, as first met: the resource tracker started through the wrapper; fork and forkserver; nested blocks; threads;
executors that start late; a wrapper that may not be executed; variables that reach descendants; exceptions inside;
LD_PRELOAD; odd Python paths; what passes through; pickled configs.
"""

import asyncio
import concurrent.futures
import dataclasses
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker, spawn
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numa_launch import ConfigError, LaunchConfig, StrictError, configure_subprocess, read_machine
from numa_launch.apply import detect as detect_module
from numa_launch.apply import spawn as spawn_module
from numa_launch.apply.swap import WRAPPER_VARIABLES, ours_now, spawner
from numa_launch.config import KEPT
from numa_launch.machine.handover import VARIABLE
from tests.apply import children
from tests.apply.conftest import RUN_IT, FakeNumactl
from tests.host import ALLOWED, BOUND_TO_A, BOUND_TO_B, CPU_A, CPU_B, needs_numactl
from tests.lay import FOUR_GPUS, Description, lay

CONTEXT = multiprocessing.get_context("spawn")
TWO = LaunchConfig(numa_bind_cpus=[str(CPU_A), str(CPU_B)], tensor_parallel_size=2)
EPERM = "echo 'set_mempolicy: Operation not permitted' >&2; exit 1"


def ours() -> tuple[Any, dict[str, str]]:
    """Return what a block may change, and must put back."""
    return spawn.get_executable(), {name: os.environ[name] for name in os.environ if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture(autouse=True)
def everything_is_put_back() -> Iterator[None]:
    before = spawn.get_executable(), ours_now()
    yield
    assert (spawn.get_executable(), ours_now()) == before
    assert spawner.open == []


def state_of(queue: "SimpleQueue[Any]", process: Any) -> dict[str, Any]:
    _, state = queue.get()
    process.join()
    assert process.exitcode == 0
    return dict(state)


def start_one(config: Any, rank: int = 0, **options: Any) -> dict[str, Any]:
    """Return what a worker started inside a block got."""
    queue: SimpleQueue[Any] = CONTEXT.SimpleQueue()
    with configure_subprocess(config, rank, **options):
        process = CONTEXT.Process(target=children.report, args=(queue,))
        process.start()
    return state_of(queue, process)


@needs_numactl
def test_two_workers_get_their_cpus() -> None:
    queue: SimpleQueue[Any] = CONTEXT.SimpleQueue()
    processes = []
    for rank in range(2):
        with configure_subprocess(TWO, rank) as binding:
            assert binding.bound
            processes.append(CONTEXT.Process(target=children.report, args=(queue, rank)))
            processes[-1].start()
    got = dict(queue.get() for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert [got[rank]["cpus"] for rank in range(2)] == [[CPU_A], [CPU_B]]
    assert [got[rank]["policy"] for rank in range(2)] == [BOUND_TO_A, BOUND_TO_B]
    assert [got[rank]["pid"] for rank in range(2)] == [process.pid for process in processes]


@needs_numactl
def test_the_resource_tracker_stays_unbound() -> None:
    program = f"""
import multiprocessing, os
from multiprocessing import resource_tracker
from numa_launch import LaunchConfig, configure_subprocess
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with configure_subprocess(LaunchConfig(numa_bind_cpus=["{CPU_A}"]), 0):
        process = context.Process(target=print)
        process.start()
    process.join()
    print(sorted(os.sched_getaffinity(resource_tracker._resource_tracker._pid)))
    print(open(f"/proc/{{resource_tracker._resource_tracker._pid}}/cmdline").read().split(chr(0))[0])
"""
    cpus, executable = run_program(program).stdout.strip().splitlines()
    assert cpus == str(ALLOWED)
    assert not executable.endswith(".sh")


def run_program(program: str, *before: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of its own, as a spawned child must find its main module in a file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "program.py"
        path.write_text(program)
        environ = {**os.environ, "PYTHONPATH": os.getcwd()}
        command = [*before, sys.executable, str(path)]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_context_of_another_start_method_is_noticed_at_entry(method: str, caplog: pytest.LogCaptureFixture) -> None:
    context = multiprocessing.get_context(method)
    with configure_subprocess(TWO, 0, context=context) as binding:
        assert spawn.get_executable() != spawn_module.WRAPPER
    assert [reason.code for reason in binding.reasons] == ["start-method"]
    assert not binding.bound
    assert method in caplog.text
    assert "bind_current_process" in caplog.text
    strict = dataclasses.replace(TWO, strict=True)
    with pytest.raises(StrictError, match=method), configure_subprocess(strict, 0, context=context):
        pass


def test_the_users_default_start_method_is_not_fixed() -> None:
    program = """
import multiprocessing
from numa_launch import LaunchConfig, configure_subprocess
for context in (None, multiprocessing):
    with configure_subprocess(LaunchConfig(numa_bind_cpus=["0"]), 0, context=context):
        pass
    assert multiprocessing.get_start_method(allow_none=True) is None
multiprocessing.set_start_method("spawn")
with configure_subprocess(LaunchConfig(numa_bind=False), 0, context=multiprocessing):
    pass
"""
    done = run_program(program)
    assert done.returncode == 0, done.stderr


@needs_numactl
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_child_started_otherwise_is_noticed_on_the_way_out(method: str) -> None:
    program = f"""
import logging, multiprocessing, sys
from multiprocessing import spawn
from numa_launch import LaunchConfig, StrictError, configure_subprocess
def child(queue):
    queue.put(str(spawn.get_executable()))
if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    context = multiprocessing.get_context("{method}")
    queue = context.SimpleQueue()
    for strict in (False, True):
        try:
            with configure_subprocess(LaunchConfig(numa_bind_cpus=["{CPU_A}"], strict=strict), 0):
                process = context.Process(target=child, args=(queue,), name="my-child")
                process.start()
                print(queue.get())
                process.join()
            print("no error")
        except StrictError as error:
            print("strict:", error)
        process.join()
"""
    done = run_program(program)
    executable, outcome, _, strict_outcome = done.stdout.strip().splitlines()
    assert outcome == "no error"
    assert strict_outcome.startswith("strict: my-child")
    for said in (done.stderr, strict_outcome):
        assert f"my-child was started by {method}" in said
        assert "bind_current_process" in said
    if method == "fork":
        assert "wrapper.sh" not in executable, "a forked child keeps the wrapper as its own spawn executable"


@needs_numactl
def test_nested_blocks_run_the_real_python_and_the_inner_one_wins() -> None:
    queue: SimpleQueue[Any] = CONTEXT.SimpleQueue()
    with configure_subprocess(TWO, 0):
        outer = ours()
        with configure_subprocess(TWO, 1):
            inner = CONTEXT.Process(target=children.report, args=(queue,))
            inner.start()
        assert ours() == outer
        assert state_of(queue, inner)["cpus"] == [CPU_B]
        after = CONTEXT.Process(target=children.report, args=(queue,))
        after.start()
    assert state_of(queue, after)["cpus"] == [CPU_A]


@needs_numactl
def test_a_block_that_stays_unbound_inside_a_bound_one_starts_unbound_workers() -> None:
    with configure_subprocess(TWO, 0):
        assert start_one(LaunchConfig(numa_bind=False))["cpus"] == ALLOWED


@needs_numactl
def test_overlapping_blocks_of_threads_do_not_mix_ranks() -> None:
    queue: SimpleQueue[Any] = CONTEXT.SimpleQueue()
    processes = []

    def start(rank: int) -> None:
        with configure_subprocess(TWO, rank % 2):
            process = CONTEXT.Process(target=children.report, args=(queue, rank))
            process.start()
            processes.append(process)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(start, range(8)))
    got = dict(queue.get() for _ in processes)
    for process in processes:
        process.join()
    assert {rank: state["cpus"] for rank, state in got.items()} == {
        rank: [CPU_B if rank % 2 else CPU_A] for rank in range(8)
    }


@pytest.mark.parametrize("strict", [False, True])
def test_blocks_of_coroutines_that_overlap_put_nobody_on_anothers_cpus(
    fake_numactl: FakeNumactl, caplog: pytest.LogCaptureFixture, strict: bool
) -> None:
    fake_numactl(RUN_IT)
    plain = spawn.get_executable()
    seen = []

    async def block(rank: int, entered: asyncio.Event, leave: asyncio.Event, config: LaunchConfig) -> None:
        with configure_subprocess(config, rank) as binding:
            seen.append((binding.bound, spawn.get_executable() == plain))
            entered.set()
            await leave.wait()

    async def interleave() -> None:
        events = [asyncio.Event() for _ in range(4)]
        first = asyncio.create_task(block(0, events[0], events[1], TWO))
        await events[0].wait()
        second = asyncio.create_task(block(1, events[2], events[3], dataclasses.replace(TWO, strict=strict)))
        if strict:
            with pytest.raises(StrictError, match="coroutines overlap"):
                await second
        else:
            await events[2].wait()
        events[1].set()
        await first
        assert spawn.get_executable() == plain
        events[3].set()
        if not strict:
            await second

    asyncio.run(interleave())
    assert seen == [(True, False), (False, True)][: 1 if strict else 2]
    assert strict or "coroutines overlap" in caplog.text


@needs_numactl
def test_an_executor_made_inside_that_starts_nothing_there_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with configure_subprocess(TWO, 0):
        pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=CONTEXT)
    assert "ProcessPoolExecutor starts its own at the first submit" in caplog.text
    pool.shutdown()


@needs_numactl
def test_an_executor_whose_first_submit_is_inside_has_bound_workers() -> None:
    with configure_subprocess(TWO, 0), concurrent.futures.ProcessPoolExecutor(1, mp_context=CONTEXT) as pool:
        assert pool.submit(children.state).result()["cpus"] == [CPU_A]


@pytest.mark.parametrize("noexec", [False, True])
def test_a_wrapper_that_may_not_be_executed_is_found_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, noexec: bool
) -> None:
    directory = tmp_path / "mount"
    directory.mkdir()
    if noexec and subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "none", directory]).returncode:
        pytest.skip("only root can mount")
    try:
        wrapper = directory / "wrapper.sh"
        shutil.copy(spawn_module.WRAPPER, wrapper)
        wrapper.chmod(0o755 if noexec else 0o644)
        monkeypatch.setattr(spawn_module, "WRAPPER", str(wrapper))
        assert start_one(TWO)["cpus"] == ALLOWED
        assert f"{wrapper} may not be executed" in caplog.text
        with pytest.raises(StrictError, match="executed"):
            start_one(dataclasses.replace(TWO, strict=True))
    finally:
        if noexec:
            subprocess.run(["umount", directory], check=True)


@needs_numactl
def test_no_variable_of_the_wrapper_reaches_the_worker() -> None:
    assert start_one(TWO)["variables"] == [VARIABLE]
    assert not any(name.startswith("NUMA_LAUNCH") for name in os.environ)


class Stopped(BaseException):
    """An exception that no handler of ours should know."""


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), Stopped(), SystemExit(3)])
def test_an_exception_inside_is_the_one_that_comes_out(error: BaseException, fake_numactl: FakeNumactl) -> None:
    fake_numactl(RUN_IT)
    strict = dataclasses.replace(TWO, strict=True)
    with pytest.raises(type(error)) as caught, configure_subprocess(strict, 0):
        fork = multiprocessing.get_context("fork").Process(target=os.getpid)
        fork.start()
        fork.join()
        os.environ[WRAPPER_VARIABLES[0]] = "spoilt"
        spawn.set_executable("/spoilt")
        raise error
    assert caught.value is error


def use_failing_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """Let the wrapper's shell be one that ends with these words."""
    shell = tmp_path / "sh"
    shell.write_text(f"#!/bin/sh\necho '{words}' >&2; exit 2\n")
    shell.chmod(0o755)
    monkeypatch.setattr(spawn_module, "SHELL", str(shell))


def test_ld_preload_that_breaks_the_shell_is_found_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fake_numactl: FakeNumactl
) -> None:
    fake_numactl(RUN_IT)
    use_failing_shell(tmp_path, monkeypatch, "sh: symbol lookup error")
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/lib.so")
    with configure_subprocess(TWO, 0) as binding:
        assert not binding.bound
    assert "LD_PRELOAD=/nowhere/lib.so" in caplog.text
    assert "symbol lookup error" in caplog.text


def test_ld_preload_that_breaks_numactl_is_found_by_the_probe(
    fake_numactl: FakeNumactl, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_numactl(f'if [ -n "${{LD_PRELOAD-}}" ]; then echo "numactl: symbol lookup error" >&2; exit 127; fi; {RUN_IT}')
    with configure_subprocess(TWO, 0) as binding:
        assert binding.bound
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/lib.so")
    with configure_subprocess(TWO, 0) as binding:
        assert not binding.bound
    assert "numactl: symbol lookup error" in caplog.text


@needs_numactl
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_python_path_with_a_blank(tmp_path: Path, as_bytes: bool) -> None:
    odd = tmp_path / "my python"
    odd.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    odd.chmod(0o755)
    before = spawn.get_executable()
    try:
        spawn.set_executable(os.fsencode(odd) if as_bytes else str(odd))  # type: ignore[arg-type]
        state = start_one(TWO)
        assert state["cpus"] == [CPU_A]
        assert os.fsdecode(spawn.get_executable()) == str(odd)
    finally:
        spawn.set_executable(before)


def test_an_embedded_python_without_executable_stays_unbound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fake_numactl: FakeNumactl
) -> None:
    fake_numactl(RUN_IT)
    with monkeypatch.context() as embedded:
        embedded.setattr(spawn, "_python_exe", None)
        with configure_subprocess(TWO, 0) as binding:
            assert spawn.get_executable() is None
    assert not binding.bound
    assert "set_executable" in caplog.text


def test_auto_mode_in_an_embedded_python_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as embedded:
        embedded.setattr(spawn, "_python_exe", None)
        with configure_subprocess(LaunchConfig(), 0) as binding:
            assert not binding.bound


def test_a_missing_shell_is_found_before_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fake_numactl: FakeNumactl
) -> None:
    fake_numactl(RUN_IT)
    monkeypatch.setattr(spawn_module, "SHELL", "/nowhere/sh")
    assert start_one(TWO)["cpus"] == ALLOWED
    assert "/nowhere/sh may not be executed" in caplog.text


@needs_numactl
def test_a_worker_joined_inside_is_a_worker_started_inside(caplog: pytest.LogCaptureFixture) -> None:
    with configure_subprocess(TWO, 0):
        process = CONTEXT.Process(target=os.getpid)
        process.start()
        process.join()
    assert process.exitcode == 0
    assert not caplog.records


def test_a_child_of_another_thread_is_its_own_affair(fake_numactl: FakeNumactl) -> None:
    fake_numactl(RUN_IT)
    fork = multiprocessing.get_context("fork").Process(target=signal.pause)
    with configure_subprocess(dataclasses.replace(TWO, strict=True), 0):
        thread = threading.Thread(target=fork.start)
        thread.start()
        thread.join()
    assert fork.is_alive()
    fork.kill()
    fork.join()


@needs_numactl
def test_the_environment_reaches_the_worker_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"BASH_FUNC_module%%": "() {  echo 'a b' \n}", "a.b": "$HOME `id` \"'", "x-y": "", "é": "ü"}
    usual = {"python": "mine", "numactl": "mine", "arguments": "mine"}
    for name, value in {**odd, **usual}.items():
        monkeypatch.setenv(name, value)
    assert {name: value for name, value in start_one(TWO)["environ"].items() if name in {**odd, **usual}} == {
        **odd,
        **usual,
    }


def test_a_path_of_numactl_that_env_would_take_for_a_variable(
    monkeypatch: pytest.MonkeyPatch, fake_numactl: FakeNumactl, tmp_path: Path
) -> None:
    numactl = fake_numactl(RUN_IT)
    odd = tmp_path / "a=b"
    odd.mkdir()
    numactl.rename(odd / "numactl")
    monkeypatch.setenv("PATH", f"{odd}:{os.environ['PATH']}")
    monkeypatch.setenv("x-y", "1")
    start_one(TWO)
    assert len(Path(f"{numactl}.log").read_text().splitlines()) == 2, "once probed, once run"


def test_an_environment_that_the_shell_does_not_survive(
    monkeypatch: pytest.MonkeyPatch, fake_numactl: FakeNumactl, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    fake_numactl(RUN_IT)
    use_failing_shell(tmp_path, monkeypatch, "sh: Illegal number: abc")
    assert start_one(TWO)["cpus"] == ALLOWED
    assert "something in the environment ends it (sh: Illegal number: abc)" in caplog.text


def test_a_variable_too_long_to_be_handed_over(monkeypatch: pytest.MonkeyPatch, fake_numactl: FakeNumactl) -> None:
    fake_numactl(RUN_IT)
    monkeypatch.setenv("x-y", "a" * 131_030)
    assert start_one(TWO)["cpus"]


@needs_numactl
def test_a_block_inside_a_block_inside_a_bound_process() -> None:
    """What a block sets for its child is not taken for what was set on this process."""
    program = f"""
import os
from numa_launch import LaunchConfig, configure_subprocess
config = LaunchConfig(numa_bind_cpus=["{CPU_A}", "{CPU_B}"])
with configure_subprocess(config, 1) as outer, configure_subprocess(config, 1) as inner:
    print(sorted(outer.cpus), sorted(inner.cpus))
"""
    command = [sys.executable, "-m", "numa_launch", "--numa-cpus", str(CPU_A), "--rank", "0", "--"]
    done = run_program(program, *command)
    assert done.stdout == f"[{CPU_B}] [{CPU_B}]\n", done.stderr


def test_interrupts_leave_nothing_swapped(fake_numactl: FakeNumactl) -> None:
    fake_numactl(RUN_IT)
    program = """
import os, signal, sys
from multiprocessing import resource_tracker, spawn
from numa_launch import LaunchConfig, configure_subprocess
from numa_launch.apply.swap import ours_now, spawner
config = LaunchConfig(numa_bind_cpus=["0"])
with configure_subprocess(config, 0):
    pass
resource_tracker.ensure_running = lambda: None  # an interrupt inside makes it start a tracker each time
before = spawn.get_executable(), ours_now()
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
left = 0
for i in range(1500):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + (i % 97) * 0.00001)
        while True:
            with configure_subprocess(config, 0):
                pass
    except KeyboardInterrupt:
        pass
    left += (spawn.get_executable(), ours_now()) != before or bool(spawner.open)
print(left)
"""
    done = run_program(program)
    assert done.stdout.strip() == "0", done.stderr


@needs_numactl
def test_a_hundred_starts_and_stops_leave_nothing() -> None:
    """No child, descriptor, file or variable is left over."""
    program = f"""
import multiprocessing, os
from multiprocessing import resource_tracker
from numa_launch import LaunchConfig, configure_subprocess
if __name__ == "__main__":
    config = LaunchConfig(numa_bind_cpus=["{CPU_A}", "{CPU_B}"])
    context = multiprocessing.get_context("spawn")
    def left():
        tracker = resource_tracker._resource_tracker._pid
        children = open(f"/proc/self/task/{{os.getpid()}}/children").read().split()
        others = [child for child in children if int(child) != tracker]
        return others, len(os.listdir("/proc/self/fd")), dict(os.environ), os.listdir(".")
    def start_and_stop(rank):
        with configure_subprocess(config, rank):
            process = context.Process(target=os.getpid)
            process.start()
        process.join()
        process.close()
    start_and_stop(0)
    before = left()
    for i in range(100):
        start_and_stop(i % 2)
    print(left() == before)
"""
    done = run_program(program)
    assert done.stdout == "True\n", done.stderr


@needs_numactl
def test_a_signal_reaches_the_worker_itself() -> None:
    with configure_subprocess(TWO, 0):
        process = CONTEXT.Process(target=signal.pause)
        process.start()
    process.terminate()
    process.join()
    assert process.exitcode == -signal.SIGTERM


@needs_numactl
def test_a_worker_that_dies_at_once_shows_its_own_status() -> None:
    queue: SimpleQueue[Any] = CONTEXT.SimpleQueue()
    with configure_subprocess(TWO, 0):
        process = CONTEXT.Process(target=children.fail, args=(queue,))
        process.start()
    process.join()
    assert process.exitcode == 7


def test_numactl_that_goes_away_after_the_probe_leaves_workers_unbound(
    fake_numactl: FakeNumactl, capfd: pytest.CaptureFixture[str]
) -> None:
    numactl = fake_numactl(RUN_IT)
    with configure_subprocess(TWO, 0):
        numactl.unlink()
        queue: SimpleQueue[Any] = CONTEXT.SimpleQueue()
        process = CONTEXT.Process(target=children.report, args=(queue,))
        process.start()
    assert state_of(queue, process)["cpus"] == ALLOWED
    assert f"{numactl} is gone" in capfd.readouterr().err


def test_each_argument_list_is_probed_once(fake_numactl: FakeNumactl) -> None:
    numactl = fake_numactl(RUN_IT)
    for rank in (0, 1, 0, 1):
        with configure_subprocess(TWO, rank):
            pass
    assert len(Path(f"{numactl}.log").read_text().splitlines()) == len({CPU_A, CPU_B})


def test_memory_binding_that_is_forbidden_is_dropped(
    fake_numactl: FakeNumactl, caplog: pytest.LogCaptureFixture
) -> None:
    fake_numactl(f'case "$*" in *--membind*) {EPERM};; esac; {RUN_IT}')
    with configure_subprocess(TWO, 0) as binding:
        assert os.environ["NUMA_LAUNCH_WRAP_ARGS"] == f"--physcpubind={CPU_A}"
    assert (binding.memory_policy, binding.memory_nodes) == (None, ())
    assert "binding-dropped" in [reason.code for reason in binding.reasons]
    assert "Operation not permitted" in caplog.text


def test_strict_raises_where_the_probe_fails(fake_numactl: FakeNumactl) -> None:
    fake_numactl(EPERM)
    with pytest.raises(StrictError), configure_subprocess(dataclasses.replace(TWO, strict=True), 0):
        pass


def test_explicit_without_numactl_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="apt-get install numactl"), configure_subprocess(TWO, 0, backend="numactl"):
        pass


def test_auto_without_numactl_stays_unbound(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    caplog.set_level(logging.INFO)
    with configure_subprocess(LaunchConfig(backend="numactl"), 0) as binding:
        assert not binding.bound
    assert "install the package numactl" in caplog.text


@pytest.mark.parametrize("config", [TWO, LaunchConfig()])
def test_the_environment_switches_a_fleet_off(
    config: LaunchConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMA_LAUNCH_BIND", "0")
    caplog.set_level(logging.INFO)
    with configure_subprocess(config, 0) as binding:
        assert not binding.bound
    assert "NUMA_LAUNCH_BIND=0" in caplog.text


def test_why_nothing_is_bound_is_said_once_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for rank in range(3):
        with configure_subprocess(LaunchConfig(numa_bind=False), rank):
            pass
    assert [(record.levelno, record.name) for record in caplog.records] == [(logging.INFO, "numa_launch")]


@pytest.mark.parametrize(
    "arguments", [(-1,), ("0",), (True,), (0, -1), (0, "x"), (0, None, "engine"), (0, None, None)], ids=str
)
def test_malformed_ranks_are_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="must be"), configure_subprocess(TWO, *arguments):
        pass


@needs_numactl
def test_a_foreign_config_binds_too() -> None:
    theirs = SimpleNamespace(numa_bind_cpus=[str(CPU_B)], tensor_parallel_size=1)
    before = repr(theirs)
    assert start_one(SimpleNamespace(parallel_config=theirs))["cpus"] == [CPU_B]
    assert repr(theirs) == before


class Host:
    """Makes the live machine a described one with four GPUs, whose node directories this test may choose."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        self.tmp_path = tmp_path
        self.monkeypatch = monkeypatch

    def is_now(self, description: Description) -> None:
        self.root = root = lay(self.tmp_path / f"host{len(list(self.tmp_path.iterdir()))}", description)

        def read(*args: Any, **options: Any) -> Any:
            self.reads += 1
            return read_machine(root, environ=os.environ)

        self.monkeypatch.setattr(detect_module, "read_machine", read)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_numactl: FakeNumactl) -> Host:
    fake_numactl(RUN_IT)
    return Host(tmp_path, monkeypatch)


def nodes_of(config: Any, rank: int) -> tuple[int, ...]:
    with configure_subprocess(config, rank) as binding:
        return binding.nodes


def test_detection_happens_once_and_is_kept_on_the_config(host: Host) -> None:
    host.is_now(FOUR_GPUS)
    config = LaunchConfig(tensor_parallel_size=4)
    assert [nodes_of(config, rank) for rank in range(4)] == [(0,), (0,), (1,), (1,)]
    assert nodes_of(LaunchConfig(tensor_parallel_size=4), 3) == (1,)
    assert host.reads == 1


def test_other_visible_gpus_are_detected_anew(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.is_now(FOUR_GPUS)
    config = LaunchConfig()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert nodes_of(config, 0) == (0,)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert nodes_of(config, 0) == (1,)


def true_in_a_fork(check: Callable[[], bool]) -> bool:
    """Return what a forked child finds."""
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Plain:
    """A config of somebody else's that is no dataclass."""

    tensor_parallel_size = 4


@dataclasses.dataclass
class Theirs:
    tensor_parallel_size: int = 4


KINDS: list[Callable[[], Any]] = [
    lambda: LaunchConfig(tensor_parallel_size=4),
    lambda: SimpleNamespace(parallel_config=Plain()),
    lambda: SimpleNamespace(parallel_config=Theirs()),
    lambda: SimpleNamespace(parallel_config=SimpleNamespace(tensor_parallel_size=4)),
]


@pytest.mark.parametrize("make", KINDS)
def test_a_child_reuses_what_its_parent_found(
    host: "Host", monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    host.is_now(FOUR_GPUS)
    config = make()
    holder = getattr(config, "parallel_config", config)
    before = repr(holder), vars(holder).copy()
    with configure_subprocess(config, 3) as binding:
        pickled = pickle.dumps(config)
    assert binding.nodes == (1,)
    assert (repr(holder), vars(holder)) == before
    limits = read_machine(host.root, environ={}).limits
    monkeypatch.setattr(detect_module, "read_limits", lambda *_: limits)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    host.is_now({**FOUR_GPUS, "gpus": []})

    def in_child() -> bool:
        received = pickle.loads(pickled)
        return [nodes_of(received, rank) for rank in (2, 0)] == [(1,), (0,)] and host.reads == 1

    assert true_in_a_fork(in_child)


def test_what_a_child_inherited_outlives_other_calls_and_variables(
    host: "Host", monkeypatch: pytest.MonkeyPatch
) -> None:
    host.is_now(FOUR_GPUS)
    config = LaunchConfig(tensor_parallel_size=4)
    assert nodes_of(config, 3) == (1,)
    limits = read_machine(host.root, environ={}).limits
    monkeypatch.setattr(detect_module, "read_limits", lambda *_: limits)
    pickled = pickle.dumps(config)

    def in_child() -> bool:
        received = pickle.loads(pickled)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        of_another = nodes_of(LaunchConfig(), 0)
        first = nodes_of(received, 3)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
        return (of_another, first, nodes_of(received, 0)) == ((1,), (1,), (0,))

    assert true_in_a_fork(in_child)


def test_a_block_inside_a_block_of_the_same_foreign_config(host: "Host") -> None:
    host.is_now(FOUR_GPUS)
    config = SimpleNamespace(parallel_config=SimpleNamespace(tensor_parallel_size=4))
    with configure_subprocess(config, 0):
        with configure_subprocess(config, 1):
            assert KEPT in vars(config.parallel_config)
        assert KEPT in vars(config.parallel_config)
    assert KEPT not in vars(config.parallel_config)


def test_a_config_that_changes_gets_another_plan(host: "Host") -> None:
    host.is_now(FOUR_GPUS)
    config = LaunchConfig(numa_bind_nodes=[0])
    assert nodes_of(config, 0) == (0,)
    config.numa_bind_nodes = [1]
    assert nodes_of(config, 0) == (1,)


def test_a_pickle_that_lands_in_a_strangers_process_is_detected_anew(host: "Host") -> None:
    host.is_now(FOUR_GPUS)
    config = LaunchConfig(tensor_parallel_size=2)
    assert nodes_of(config, 1) == (0,)
    detected: detect_module.Detected = config._numa_launch_detected  # type: ignore[attr-defined]
    swapped = {**FOUR_GPUS, "gpus": [{"node": 1}, {"node": 1}]}
    for origin in (
        detected.origin._replace(boot="another kernel's"),
        detected.origin._replace(started_at="1"),
        detected.origin._replace(pid=os.getpid() + 1),
    ):
        host.is_now(swapped)
        config._numa_launch_detected = detected._replace(origin=origin)  # type: ignore[attr-defined]
        assert true_in_a_fork(lambda: nodes_of(config, 1) == (1,))


def test_the_same_pid_of_another_boot_is_a_stranger(host: "Host") -> None:
    host.is_now(FOUR_GPUS)
    config = LaunchConfig()
    assert nodes_of(config, 0) == (0,)
    detected: detect_module.Detected = config._numa_launch_detected  # type: ignore[attr-defined]
    config._numa_launch_detected = detected._replace(origin=detected.origin._replace(boot="another"))  # type: ignore[attr-defined]
    detect_module._latest = None
    host.is_now({**FOUR_GPUS, "gpus": [{"node": 1}]})
    assert nodes_of(config, 0) == (1,)


def test_others_configs_are_not_kept_for_ever(host: "Host") -> None:
    host.is_now(FOUR_GPUS)
    for _ in range(200):
        assert nodes_of(SimpleNamespace(parallel_config=Plain()), 3) == (1,)
    assert len(detect_module._foreign) <= detect_module.MOST_FOREIGN


def test_a_config_with_more_than_its_fields(fake_numactl: FakeNumactl) -> None:
    fake_numactl(RUN_IT)
    config = dataclasses.replace(TWO)
    config.note = {"unhashable": []}  # type: ignore[attr-defined]
    with configure_subprocess(config, 0) as binding:
        assert binding.bound


def test_strict_with_a_child_that_was_closed(fake_numactl: FakeNumactl) -> None:
    fake_numactl(RUN_IT)
    with (
        pytest.raises(StrictError, match="fork"),
        configure_subprocess(dataclasses.replace(TWO, strict=True), 0),
    ):
        fork = multiprocessing.get_context("fork").Process(target=int)
        fork.start()
        fork.join()
        fork.close()


@pytest.mark.parametrize("value", ["0 ", " off", "No"])
def test_every_way_to_say_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NUMA_LAUNCH_BIND", value)
    with configure_subprocess(TWO, 0) as binding:
        assert not binding.bound


def test_a_kill_switch_that_cannot_be_read_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fake_numactl: FakeNumactl
) -> None:
    fake_numactl(RUN_IT)
    monkeypatch.setenv("NUMA_LAUNCH_BIND", "2")
    with configure_subprocess(TWO, 0) as binding:
        assert binding.bound
    assert "NUMA_LAUNCH_BIND='2' is neither 0 nor 1" in caplog.text


def test_a_memory_policy_that_was_set_meanwhile_is_seen(host: "Host", monkeypatch: pytest.MonkeyPatch) -> None:
    host.is_now(FOUR_GPUS)
    config = LaunchConfig()
    assert nodes_of(config, 0) == (0,)
    monkeypatch.setattr(detect_module, "read_policy", lambda root: "bind:0")
    host.is_now({**FOUR_GPUS, "policy": "bind:0"})
    assert nodes_of(config, 0) == ()


@needs_numactl
@pytest.mark.parametrize("depth", [0, 1])
def test_an_engine_core_starts_its_workers_bound_at_any_depth(depth: int) -> None:
    queue: SimpleQueue[Any] = CONTEXT.SimpleQueue()
    with configure_subprocess(TWO, 0, process_kind="EngineCore"):
        process = CONTEXT.Process(target=children.engine, args=(queue, TWO, depth))
        process.start()
    got = [queue.get() for _ in range(3 * (depth + 1))]
    process.join()
    assert process.exitcode == 0
    cpus = {"engine": ALLOWED, 0: [CPU_A], 1: [CPU_B]}
    assert all(state["cpus"] == cpus[tag] for tag, state in got)


@needs_numactl
def test_a_worker_may_start_workers_elsewhere_than_it_was_bound_itself() -> None:
    """CPU lists of one rank bound through us do not fence in what the library inside plans."""
    queue: SimpleQueue[Any] = CONTEXT.SimpleQueue()
    with configure_subprocess(TWO, 0):
        process = CONTEXT.Process(target=children.engine, args=(queue, TWO, 0))
        process.start()
    got = dict(queue.get() for _ in range(3))
    process.join()
    assert [got[tag]["cpus"] for tag in ("engine", 0, 1)] == [[CPU_A], [CPU_A], [CPU_B]]


def test_a_fork_inside_a_block_leaves_parent_and_child_right(fake_numactl: FakeNumactl) -> None:
    fake_numactl(RUN_IT)
    before = ours()
    with configure_subprocess(TWO, 0):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.write(writer, b"1" if ours() == before else b"0")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(reader, 1) == b"1"
        os.close(reader)
        os.close(writer)
        assert spawn.get_executable() != before[0]


def test_a_child_forked_by_another_thread_can_use_the_library(fake_numactl: FakeNumactl) -> None:
    fake_numactl(RUN_IT)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with configure_subprocess(TWO, 0):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    pid = os.fork()
    if not pid:
        with configure_subprocess(LaunchConfig(numa_bind=False), 0):
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    leave.set()
    thread.join()


def test_the_resource_tracker_of_this_process_is_alive() -> None:
    resource_tracker.ensure_running()
    assert sorted(os.sched_getaffinity(resource_tracker._resource_tracker._pid)) == ALLOWED  # type: ignore[attr-defined]
