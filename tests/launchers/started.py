"""Start a real launcher, and see what became of its ranks.

Example: ``started(tmp_path, "mpirun", "-n", "2", NUMA_LAUNCH, "--", *rank(tmp_path, "mpi")).cpus`` is ``["0", "1"]``.
"""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.host import ALLOWED, BOUND_TO_A, BOUND_TO_B, CPU_A, CPU_B
from tests.lay import lay
from tests.live import AS_ROOT

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))
NUMA_LAUNCH = str(SCRIPTS / "numa-launch")

TORCHRUN = SCRIPTS / "torchrun"

HOW = "scripts/setup --test --launchers brings it"
needs_torchrun = pytest.mark.skipif(not TORCHRUN.is_file(), reason=f"torchrun is missing: {HOW}")
needs_two_cpus = pytest.mark.skipif(len(ALLOWED) < 2, reason="one CPU: ranks cannot be told apart by theirs")

FOUR_LISTS = [f"--numa-cpus={cpu}" for cpu in (CPU_B, CPU_A, CPU_B, CPU_A)]
"""Rank 0 on the last CPU, where no launcher puts it by itself."""

FOUR_PLACES = [(str(CPU_B), BOUND_TO_B), (str(CPU_A), BOUND_TO_A)] * 2


class Started(NamedTuple):
    """How a launcher ended, and what each rank wrote, by local rank."""

    status: int
    stdout: str
    stderr: str
    ranks: list[dict[str, Any]]

    @property
    def places(self) -> list[tuple[str, str]]:
        """The CPUs and the memory policy of each rank; every thread of it has these CPUs."""
        assert all(rank["state"]["threads"] == [rank["state"]["cpus"]] for rank in self.ranks)
        return [(rank["state"]["cpus"], rank["state"]["policy"]) for rank in self.ranks]

    @property
    def cpus(self) -> list[str]:
        return [cpus for cpus, _ in self.places]

    @property
    def collective(self) -> list[tuple[int, int, int]]:
        return [(rank["rank"], rank["size"], rank["total"]) for rank in self.ranks]


def rank(directory: Path, collective: str = "none", *arguments: str) -> list[str]:
    """Return the COMMAND of a rank that writes its facts into the directory."""
    return [sys.executable, "-m", "tests.launchers.rank", str(directory), collective, *arguments]


def started(directory: Path, *line: object, env: Mapping[str, str] | None = None) -> Started:
    """Run a launcher's command line to its end; a launcher that is ended takes its ranks along."""
    child = subprocess.Popen(
        [str(word) for word in line],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = child.communicate(timeout=120)
    except BaseException:
        child.terminate()
        child.communicate()
        raise
    ranks = [json.loads(path.read_text()) for path in directory.glob("*.json")]
    return Started(child.returncode, stdout, stderr, sorted(ranks, key=local_rank))


def local_rank(facts: dict[str, Any]) -> int:
    names = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    return next(int(facts["environ"][name]) for name in names if name in facts["environ"])


def on_two_nodes(root: Path) -> list[str]:
    """Return what runs a command where CPU_A is all of node 0 and CPU_B all of node 1, and GPU 0 is on node 1.

    Affinity, memory policy and /proc are the real ones, so a launcher's own binding shows.
    """
    machine = {
        "nodes": {"0": {"cpus": str(CPU_A)}, "1": {"cpus": str(CPU_B)}},
        "gpus": [{"vendor": "intel", "node": 1}, {"vendor": "intel", "node": 0}],
    }
    return [*AS_ROOT, "sh", "-c", 'mount --bind "$0/sys" /sys && exec "$@"', str(lay(root, machine))]
