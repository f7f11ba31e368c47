"""What each task got under a real Slurm, in a guest with eight nodes whose GPUs are in another order than the nodes.

Most plans come from those GPUs: rank_ldom is wrong there, and what the plan says is right.
"""

import os
import shutil
from typing import Any

import pytest

from tests.vm.conftest import scenario

PROGRAMS = ("munged", "salloc", "sbatch", "slurmctld", "slurmd", "srun")
MISSING = [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")]

pytestmark = [
    pytest.mark.guest,
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} (slurmctld slurmd slurm-client munge)"),
]

STRAIGHT = tuple(range(8))
PERMUTED = (3, 2, 1, 0, 7, 6, 5, 4)
MORE_RANKS = (0, 0, 0, 1, 7, 6, 5, 4, 3, 2)


def on(nodes: tuple[int, ...], policy: str = "default") -> list[list[str]]:
    """Return CPUs and policy of tasks that have all of these nodes' CPUs; the policy's node is the task's."""
    return [[f"{2 * node}-{2 * node + 1}", policy.format(node)] for node in nodes]


def bound_by(line: dict[str, Any]) -> str:
    """Return the method that srun was given."""
    given: str = next(word for word in line["command"] if word.startswith("--cpu-bind="))
    return given.removeprefix("--cpu-bind=verbose,").split(":")[0]


def line(name: str) -> dict[str, Any]:
    """Return what came of a line in an allocation of the whole host."""
    found: dict[str, Any] = scenario("slurm", "inside")["lines"][name]
    assert found["status"] == 0, found["said"]
    return found


# --- numa-launch srun, and srun_options


@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("auto", "mask_cpu", on(PERMUTED)),
        ("rank_ldom", "rank_ldom", on(STRAIGHT)),  # wrong here, and done as it was asked for
        ("map_ldom", "map_ldom", on(PERMUTED)),
        ("mask_ldom", "mask_ldom", on(PERMUTED)),
        ("map_cpu", "map_cpu", [[str(2 * node), "default"] for node in PERMUTED]),
        ("mask_cpu", "mask_cpu", on(PERMUTED)),
        ("straight", "rank_ldom", on(STRAIGHT)),
        ("more ranks", "mask_cpu", on(MORE_RANKS)),
        ("membind", "mask_cpu", on(PERMUTED, "bind:{}")),
        ("preferred", "mask_cpu", on(PERMUTED, "prefer:{}")),
    ],
)
def test_every_method_in_an_allocation(name: str, method: str, expected: list[list[str]]) -> None:
    found = line(name)
    assert bound_by(found) == method
    assert found["tasks"] == expected


def test_the_program_becomes_srun() -> None:
    found = line("program")
    assert found["tasks"] == on(PERMUTED)
    assert "cpu-bind=MASK" in found["said"]


def test_an_exclusive_step_of_an_allocation() -> None:
    assert line("exclusive")["tasks"] == on(PERMUTED)
    assert "16 CPUs do not divide by 10 tasks" in scenario("slurm", "inside")["refused"]


@pytest.mark.parametrize(
    ("name", "method", "nodes"), [("ours", "mask_cpu", PERMUTED), ("straight", "rank_ldom", STRAIGHT)]
)
def test_outside_an_allocation_the_step_holds_the_host(name: str, method: str, nodes: tuple[int, ...]) -> None:
    found = scenario("slurm", "outside")[name]
    assert found["status"] == 0, found["said"]
    assert bound_by(found) == method
    assert found["tasks"] == on(nodes)


@pytest.mark.parametrize(
    ("name", "said"),
    [("slurm", "Entire node must be allocated"), ("slurm's masks", "CPU binding outside of job step allocation")],
)
def test_slurm_refuses_a_step_that_does_not_hold_the_cpus(name: str, said: str) -> None:
    found = scenario("slurm", "outside")[name]
    assert found["status"] == 192
    assert said in found["said"]
    assert found["tasks"] == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("too few", "8 tasks of 1 CPUs (-c) do not hold the host's 16 CPUs"),
        ("does not divide", "16 CPUs do not divide by 10 tasks"),
    ],
)
def test_such_a_step_is_refused_before_slurm_does(name: str, said: str) -> None:
    assert said in scenario("slurm", "outside")[name]


def test_in_a_part_of_the_host_masks_stay_within_the_cpuset() -> None:
    found = scenario("slurm", "part")
    assert found["status"] == "0", found["printed"]
    assert "Cpus_allowed_list:\t0-2\n" in found["printed"]
    assert "Slurm refuses rank_ldom, as this allocation has 3 of the host's 16 CPUs" in found["printed"]
    assert found["tasks"] == [["0-1", "default"], ["2", "default"]]


def test_an_sbatch_script_that_has_the_variables_of_another_step() -> None:
    found = scenario("slurm", "sbatch")
    assert found["status"] == "0", found["printed"]
    had = found["printed"].splitlines()
    assert {"SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_CPU_BIND=quiet,map_cpu:0"} <= set(had)
    assert "ROCR_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in had
    assert found["tasks"] == on(PERMUTED)


# --- numa-launch as a task


@pytest.mark.parametrize(("name", "policy"), [("auto", "prefer:{}"), ("own GPU", "prefer:{}"), ("explicit", "bind:{}")])
def test_a_task_finds_its_rank_or_the_gpu_that_it_alone_has(name: str, policy: str) -> None:
    found = scenario("slurm", "tasks")[name]
    assert found["status"] == 0, found["said"]
    assert found["tasks"] == on(PERMUTED[:4], policy)
    assert "MPI or PMI" not in found["said"]


def test_cpus_that_srun_has_narrowed_are_left_alone() -> None:
    found = scenario("slurm", "tasks")["narrowed"]
    assert found["status"] == 0, found["said"]
    assert found["tasks"] == on((0, 1, 2, 3))
    assert found["said"].count("(affinity-constrained)") == 4


def test_binding_explicitly_in_a_pmi_task_goes_on_and_warns() -> None:
    found = scenario("slurm", "tasks")["pmi"]
    assert found["status"] == 0, found["said"]
    assert found["tasks"] == on((3,), "bind:{}")
    assert "inside an MPI or PMI task (PMI_RANK is set)" in found["said"]
