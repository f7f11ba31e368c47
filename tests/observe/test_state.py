"""The one line that says what the kernel shows of this process."""

import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from numa_launch import current_binding, log_current_affinity_state
from numa_launch.machine.handover import VARIABLE, Handover
from numa_launch.machine.limits import read_policy
from numa_launch.observe import state
from tests.host import ALL_ALLOWED, ALLOWED, CPU_A, CPU_B, node_of

needs_two_cpus = pytest.mark.skipif(len(ALLOWED) < 2, reason="this process may use one CPU only")


def affinity_in_child(program: str, cpus: set[int]) -> str:
    """Return what a Python that may use these CPUs only prints."""
    pinned = f"import os; os.sched_setaffinity(0, {cpus})\n{program}"
    return subprocess.run([sys.executable, "-c", pinned], check=True, capture_output=True, text=True).stdout.strip()


def line_of(caplog: pytest.LogCaptureFixture, label: Any) -> str:
    caplog.set_level(logging.INFO)
    log_current_affinity_state(label)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("numa_launch", logging.INFO)
    return record.getMessage()


def test_label_policy_cpus_and_nodes(caplog: pytest.LogCaptureFixture) -> None:
    line = line_of(caplog, "worker 3")
    node = node_of(min(os.sched_getaffinity(0)))
    assert line.startswith(f"worker 3: policy {read_policy('')}, CPUs {ALL_ALLOWED}, nodes {node}")


def test_a_label_of_several_lines_is_one(caplog: pytest.LogCaptureFixture) -> None:
    assert line_of(caplog, "a\nb\t c").startswith("a b c: ")
    assert "\n" not in caplog.records[0].getMessage()


@pytest.mark.parametrize("name", ["read_policy", "current_affinity", "read_nodes", "read_online"])
def test_it_never_raises(name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(state, name, broken)
    assert "RuntimeError: broken" in line_of(caplog, "worker 3")


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_label_or_a_log_that_fails_does_not_end_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    log_current_affinity_state(Unprintable())  # type: ignore[arg-type]

    def refuse(*args: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(logging.getLogger("numa_launch"), "info", refuse)
    log_current_affinity_state("x")


def test_what_cannot_be_read_is_unknown(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(state, "read_policy", lambda *_: None)
    monkeypatch.setattr(state, "current_affinity", lambda *_: None)
    assert current_binding() is None
    assert line_of(caplog, "x") == "x: policy unknown, CPUs unknown, nodes unknown"


def ask(monkeypatch: pytest.MonkeyPatch, cpus: frozenset[int], policy: str) -> None:
    """Have this process find what a launcher of ours would have left for it."""
    monkeypatch.setenv(VARIABLE, str(Handover(cpus, policy, frozenset(ALLOWED), "default")))


def test_nobody_asked_for_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    state = current_binding()
    assert state is not None
    assert state.cpus == os.sched_getaffinity(0)
    assert (state.asked_cpus, state.asked_policy) == (None, None)


@needs_two_cpus
def test_the_verdict_is_about_what_the_kernel_has_not_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, frozenset({CPU_A}), "default")
    asked = affinity_in_child("import numa_launch; print(numa_launch.current_binding().verdict)", {CPU_A})
    assert asked == "local"
    moved = affinity_in_child("import numa_launch; print(numa_launch.current_binding().verdict)", {CPU_B})
    assert moved == ("narrowed" if node_of(CPU_A) == node_of(CPU_B) else "wrong-node")


@needs_two_cpus
def test_a_thread_wider_than_the_rest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, frozenset({CPU_A}), "default")
    program = f"""
import os, threading, numa_launch
wide, done = threading.Event(), threading.Event()
thread = threading.Thread(target=lambda: (wide.set(), done.wait()))
thread.start()
wide.wait()
os.sched_setaffinity(0, [{CPU_A}])
print(numa_launch.current_binding().verdict)
done.set()
"""
    assert affinity_in_child(program, {CPU_A, CPU_B}) == "threads-escaped"
