"""Under frameworks' launchers: Hugging Face accelerate, and those that start spawned children of their own."""

import multiprocessing
from dataclasses import dataclass
from pathlib import Path

import pytest

from numa_launch import LaunchConfig, configure_subprocess
from tests.host import CPU_A, CPU_B, needs_memory_policy
from tests.launchers.rank import main as be_a_rank
from tests.launchers.started import HOW, NUMA_LAUNCH, SCRIPTS, needs_two_cpus, rank, started

ACCELERATE = SCRIPTS / "accelerate"
LAUNCH = [ACCELERATE, "launch", "--no_python", "--num_machines", "1", "--num_processes"]

needs_accelerate = pytest.mark.skipif(not ACCELERATE.is_file(), reason=f"accelerate is missing: {HOW}")


@needs_accelerate
@needs_two_cpus
def test_accelerate(tmp_path: Path) -> None:
    environ = {"NUMA_LAUNCH_NUMA_CPUS": f"{CPU_B} {CPU_A}"}
    done = started(tmp_path, *LAUNCH, 2, "--multi_gpu", NUMA_LAUNCH, "--", *rank(tmp_path, "torch"), env=environ)
    assert done.status == 0, done.stderr
    assert done.cpus == [str(CPU_B), str(CPU_A)]
    assert done.collective == [(0, 2, 3), (1, 2, 3)]


@needs_accelerate
def test_accelerate_with_one_process_sets_no_rank_and_needs_the_dashes_twice(tmp_path: Path) -> None:
    environ = {"NUMA_LAUNCH_NUMA_CPUS": str(CPU_B)}
    once = started(tmp_path, *LAUNCH, 1, "--cpu", NUMA_LAUNCH, "--", "true", env=environ)
    assert "put one more before numa-launch" in once.stderr
    twice = started(tmp_path, *LAUNCH, 1, "--cpu", "--", NUMA_LAUNCH, "--rank=0", "--", "true", env=environ)
    assert (once.status, twice.status) == (1, 0)
    assert f"CPUs {CPU_B}" in twice.stderr
