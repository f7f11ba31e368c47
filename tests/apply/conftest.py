"""Fixtures of the tests that act: a fresh memory of probes, and fake numactl programs first on PATH."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from numa_launch.apply import detect, spawn
from numa_launch.apply.probe import Prober

FakeNumactl = Callable[[str], Path]


@pytest.fixture(autouse=True)
def no_memory_of_earlier_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(spawn, "_prober", Prober())
    monkeypatch.setattr(spawn, "_numactl_of_path", {})
    monkeypatch.setattr(detect, "_latest", None)
    before, put_back = os.sched_getaffinity(0), os.sched_setaffinity
    yield
    put_back(0, before)


@pytest.fixture
def fake_numactl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNumactl:
    """Return a function that puts a shell script called numactl first on PATH; it logs its arguments beside itself."""

    def make(script: str) -> Path:
        path = tmp_path / "bin/numactl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$@" >>"{path}.log"\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return path

    return make


RUN_IT = 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"'
"""What a fake numactl does to run the command behind its options."""
