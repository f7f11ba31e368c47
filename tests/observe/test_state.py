"""The one line that says what the kernel shows of this process."""

import logging
import os
from typing import Any

import pytest

from numa_launch import log_current_affinity_state
from numa_launch.machine.limits import read_policy
from numa_launch.observe import state
from tests.host import ALL_ALLOWED, node_of


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
    assert line_of(caplog, "x") == "x: policy unknown, CPUs unknown, nodes unknown"
