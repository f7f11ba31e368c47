"""Under torchrun: each rank is where it was planned, and nothing else is different for it."""

import re
import sys
from pathlib import Path

import pytest

from numa_launch.machine.handover import VARIABLE
from tests.host import CPU_A, CPU_B, needs_memory_policy
from tests.launchers.started import (
    FOUR_LISTS,
    FOUR_PLACES,
    NUMA_LAUNCH,
    TORCHRUN,
    needs_torchrun,
    needs_two_cpus,
    on_two_nodes,
    rank,
    started,
)
from tests.live import needs_namespaces

pytestmark = needs_torchrun

NO_PYTHON = [TORCHRUN, "--no-python", "--nproc-per-node"]


@needs_two_cpus
@needs_memory_policy
def test_every_rank_is_on_its_cpus_and_they_all_reduce(tmp_path: Path) -> None:
    done = started(tmp_path, *NO_PYTHON, 4, NUMA_LAUNCH, *FOUR_LISTS, "--", *rank(tmp_path, "torch"))
    assert done.status == 0, done.stderr
    assert done.collective == [(i, 4, 10) for i in range(4)]
    assert done.places == FOUR_PLACES
    for i, facts in enumerate(done.ranks):
        expected = {"RANK": str(i), "LOCAL_RANK": str(i), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
        assert expected.items() <= facts["environ"].items()


OF_EACH_RUN = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"}


@needs_two_cpus
def test_without_options_and_nothing_else_is_different(tmp_path: Path) -> None:
    """torchrun drops the ``--`` right behind numa-launch; a later one is COMMAND's own."""
    plain, bound = tmp_path / "plain", tmp_path / "bound"
    environ = {"NUMA_LAUNCH_NUMA_CPUS": f"{CPU_B} {CPU_A}"}
    plain.mkdir()
    bound.mkdir()
    before = started(plain, *NO_PYTHON, 2, *rank(plain, "none", "--", "--tp"), env=environ)
    done = started(bound, *NO_PYTHON, 2, NUMA_LAUNCH, "--", *rank(bound, "none", "--", "--tp"), env=environ)
    assert (before.status, done.status) == (0, 0), done.stderr
    assert done.cpus == [str(CPU_B), str(CPU_A)]
    for then, now in zip(before.ranks, done.ranks, strict=True):
        assert now["arguments"] == then["arguments"] == ["--", "--tp"]
        differs = {name for name in now["environ"] if now["environ"][name] != then["environ"].get(name)}
        assert then["environ"].keys() <= now["environ"].keys()
        assert differs - OF_EACH_RUN == {VARIABLE}


@needs_two_cpus
@needs_namespaces
def test_auto_mode_binds_each_rank_to_the_node_of_its_gpu(tmp_path: Path) -> None:
    """The line of the README, word for word, on a machine with two nodes."""
    machine = on_two_nodes(tmp_path / "root")
    done = started(tmp_path, *machine, *NO_PYTHON, 2, NUMA_LAUNCH, "--", *rank(tmp_path))
    assert done.status == 0, done.stderr
    assert done.cpus == [str(CPU_B), str(CPU_A)]
    assert "worker 0: node 1" in done.stderr


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit $((LOCAL_RANK * 7))"], 7),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], -9),
        (["no-such-command"], 127),
    ],
)
def test_how_a_rank_ends_is_what_torchrun_sees(tmp_path: Path, command: list[str], status: int) -> None:
    done = started(tmp_path, *NO_PYTHON, 2, NUMA_LAUNCH, f"--numa-cpus={CPU_A}", f"--numa-cpus={CPU_B}", "--", *command)
    assert done.status == 1
    assert f"{status}" in re.findall(r"exitcode +: (-?\d+)", done.stderr)
    if status == 127:
        assert "Error: no-such-command: command not found\n" in done.stderr
