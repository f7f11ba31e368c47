"""bind_current_process: in children of their own, as it changes the process it is called in."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from numa_launch import LaunchConfig, StrictError, bind_current_process
from numa_launch.apply import builtin
from tests.host import ALLOWED, BOUND_TO_B, CPU_B, needs_numactl, node_of
from tests.lay import FOUR_GPUS, lay
from tests.live import AS_ROOT, needs_namespaces

CPU = CPU_B
NODE = node_of(CPU)
pytestmark = needs_numactl  # it needs no numactl, but a kernel that lets it bind


def in_child(body: str, **environ: str) -> Any:
    program = f"""
import json, os, sys, threading
from numa_launch import LaunchConfig, StrictError, bind_current_process
from numa_launch.machine.limits import read_policy
config = LaunchConfig(numa_bind_cpus=["{CPU}"])
{body}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environ}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_affinity_and_policy_of_the_calling_process() -> None:
    cpus, policy, bound, missed = in_child("""
done = bind_current_process(config, 0)
print(json.dumps([sorted(os.sched_getaffinity(0)), read_policy(""), done.binding.bound, done.not_reached]))
""")
    assert (cpus, policy, bound, missed) == ([CPU], BOUND_TO_B, True, [])


def test_every_thread_there_is_and_those_that_come_later() -> None:
    there, later, missed = in_child("""
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(20)]
for thread in threads: thread.start()
done = bind_current_process(config, 0)
there = {tuple(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")}
later = []
thread = threading.Thread(target=lambda: later.append(sorted(os.sched_getaffinity(0))))
thread.start(); thread.join()
stop.set()
print(json.dumps([sorted(there), later, done.not_reached]))
""")
    assert there == [[CPU]]
    assert later == [[CPU]]
    assert missed == ["memory policy of 20 other threads, which started before"]


def test_threads_that_start_and_end_meanwhile() -> None:
    assert in_child("""
stop = False
def breed():
    while not stop:
        thread = threading.Thread(target=int); thread.start(); thread.join()
breeders = [threading.Thread(target=breed) for _ in range(4)]
for thread in breeders: thread.start()
done = bind_current_process(config, 0)
stop = True
for thread in breeders: thread.join()
print(json.dumps(not [missed for missed in done.not_reached if "CPUs" in missed]))
""")


def test_what_was_set_is_handed_over() -> None:
    """A second call, and a worker that this process starts, plan from what was allowed before."""
    other = ALLOWED[0]
    again, handed = in_child(f"""
import subprocess
bind_current_process(config, 0)
handed = os.environ["NUMA_LAUNCH_BOUND"]
bind_current_process(LaunchConfig(numa_bind_cpus=["{other}"]), 0)
print(json.dumps([sorted(os.sched_getaffinity(0)), handed]))
""")
    assert again == [other]
    assert handed.startswith(f"{CPU};{BOUND_TO_B};")
    assert handed.endswith(";default")


@pytest.mark.parametrize("handed", ["", "0;default;0;default"])
def test_unbinding_puts_everything_back(handed: str) -> None:
    cpus, policy, handed_after = in_child(f"""
from numa_launch.apply.current import Before, unbind_current_process
if {handed!r}: os.environ["NUMA_LAUNCH_BOUND"] = {handed!r}
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
before = Before.now()
assert bind_current_process(config, 0).binding.bound
unbind_current_process(before)
cpus = [sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")]
stop.set()
print(json.dumps([cpus, read_policy(""), os.environ.get("NUMA_LAUNCH_BOUND", "")]))
""")
    assert (cpus, policy, handed_after) == ([ALLOWED, ALLOWED], "default", handed)


def test_a_policy_that_cannot_be_put_back_is_said() -> None:
    policy, handed, said = in_child(f"""
import logging
said = []
logging.getLogger("numa_launch").addFilter(lambda record: said.append(record.getMessage()))
from numa_launch.apply.current import Before, unbind_current_process
bind_current_process(config, 0)
unbind_current_process(Before(None, "interleave:{NODE}", None))
print(json.dumps([read_policy(""), os.environ.get("NUMA_LAUNCH_BOUND"), said]))
""")
    assert (policy, handed) == ("default", None)
    assert said == [f"unbound again, but not put back: memory policy interleave:{NODE}, which was set before"]


def test_in_another_thread_the_policy_is_that_threads() -> None:
    own, main = in_child("""
seen = []
def bind_and_see():
    bind_current_process(config, 0)
    seen.append(read_policy(""))
thread = threading.Thread(target=bind_and_see)
thread.start(); thread.join()
print(json.dumps([*seen, read_policy("")]))
""")
    assert (own, main) == (BOUND_TO_B, "default")


def test_the_gpus_are_those_this_process_sees_now(tmp_path: Path) -> None:
    """A worker that hides the other GPUs after it got its parent's config takes the one that is left."""
    root = lay(tmp_path, FOUR_GPUS)
    assert in_child(f"""
import dataclasses, pickle
from numa_launch import read_machine
from numa_launch.apply import current, detect
detect.read_machine = lambda **_: read_machine({str(root)!r}, environ=os.environ)
detect.read_limits = lambda *_: read_machine({str(root)!r}, environ={{}}).limits
config = LaunchConfig(tensor_parallel_size=4)
detect.detect(config, detect.variables_now())
reader, writer = os.pipe()
if not os.fork():
    received = pickle.loads(pickle.dumps(config))
    os.environ["CUDA_VISIBLE_DEVICES"] = "3"
    os.sched_setaffinity = lambda *_: None
    current.set_mempolicy = lambda *_: None
    os.write(writer, json.dumps(bind_current_process(received, 3).binding.nodes).encode())
    os._exit(0)
os.wait()
print(os.read(reader, 100).decode())
""") == [1]


@pytest.mark.parametrize("values", ["distributed_executor_backend='ray'", "data_parallel_backend='ray'", "nnodes=1"])
def test_a_worker_of_any_launcher_binds_itself(tmp_path: Path, values: str) -> None:
    root = lay(tmp_path, FOUR_GPUS)
    assert in_child(f"""
from numa_launch import read_machine
from numa_launch.apply import current, detect
detect.read_machine = lambda **_: read_machine({str(root)!r}, environ=os.environ)
os.sched_setaffinity = lambda *_: None
current.set_mempolicy = lambda *_: None
os.environ["CUDA_VISIBLE_DEVICES"] = "3"
print(json.dumps(bind_current_process(LaunchConfig({values}), 5).binding.nodes))
""") == [1]


def test_it_needs_no_numactl() -> None:
    assert in_child(
        "print(json.dumps(bind_current_process(config, 0).binding.bound and sorted(os.sched_getaffinity(0))))",
        PATH="/nowhere",
    ) == [CPU]


def test_what_stays_unbound_changes_nothing() -> None:
    before = os.sched_getaffinity(0)
    assert not bind_current_process(LaunchConfig(numa_bind=False), 0).binding.bound
    assert os.sched_getaffinity(0) == before


REFUSE_MEMPOLICY = """
import ctypes
from numa_launch.apply import builtin
builtin.NUMBERS = {}
"""


def test_a_memory_policy_that_cannot_be_set_is_returned() -> None:
    cpus, missed = in_child(
        REFUSE_MEMPOLICY
        + """
done = bind_current_process(config, 0)
print(json.dumps([sorted(os.sched_getaffinity(0)), done.not_reached]))
"""
    )
    assert cpus == [CPU]
    assert len(missed) == 1
    assert missed[0].startswith("memory policy: ")


def test_strict_raises_and_changes_nothing() -> None:
    cpus, message = in_child(
        REFUSE_MEMPOLICY
        + f"""
config = LaunchConfig(numa_bind_cpus=["{CPU}"], strict=True)
try:
    bind_current_process(config, 0)
except StrictError as error:
    print(json.dumps([sorted(os.sched_getaffinity(0)), str(error)]))
"""
    )
    assert cpus == ALLOWED
    assert "memory policy" in message


def test_an_affinity_that_cannot_be_read_is_no_error() -> None:
    assert in_child("""
def refused(pid): raise PermissionError
os.sched_getaffinity, real = refused, os.sched_getaffinity
bound = bind_current_process(config, 0).binding.bound
print(json.dumps([bound, sorted(real(0))]))
""") == [True, [CPU]]


def test_cpus_that_cannot_be_set(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refused(pid: int, cpus: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    done = bind_current_process(LaunchConfig(numa_bind_cpus=[str(CPU)]), 0)
    assert not done.binding.bound
    assert "Operation not permitted" in caplog.text
    with pytest.raises(StrictError, match="CPUs cannot be set"):
        bind_current_process(LaunchConfig(numa_bind_cpus=[str(CPU)], strict=True), 0)


@pytest.mark.parametrize("policy", list(builtin.MODES))
def test_every_policy_is_what_the_kernel_shows(policy: str) -> None:
    names = {"preferred": "prefer", "membind": "bind", "interleave": "interleave", "preferred-many": "prefer (many)"}
    assert in_child(f"""
from numa_launch.apply.builtin import set_mempolicy
set_mempolicy({policy!r}, ({NODE},))
print(json.dumps(read_policy("")))
""") == (f"{names[policy]}:{NODE}")


def test_a_node_that_is_not_there_is_the_kernels_error() -> None:
    assert in_child("""
from numa_launch.apply.builtin import set_mempolicy
try:
    set_mempolicy("membind", (1000,))
except OSError as error:
    print(json.dumps([error.strerror, read_policy("")]))
""") == ["Invalid argument", "default"]


IN_THREADS = """
import sys, threading
from numa_launch import LaunchConfig, bind_current_process
stay = threading.Event()
for _ in range(int(sys.argv[1])):
    threading.Thread(target=stay.wait, daemon=True).start()
print(bind_current_process(LaunchConfig(numa_bind=True, numa_bind_cpus=[sys.argv[2]]), 0).not_reached)
"""


@needs_namespaces
@needs_numactl
@pytest.mark.parametrize("threads", [0, 2])
def test_threads_that_another_proc_shows_are_left_alone_and_said(threads: int) -> None:
    line = [*AS_ROOT, "--pid", "--fork", sys.executable, "-c", IN_THREADS, str(threads), str(CPU_B)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("do not show in /proc" in done.stdout) == bool(threads)
    assert "Traceback" not in done.stderr
