"""The rank and the number of ranks, from each launcher's variables."""

import pytest

from numa_launch.cli.ranks import RANK_VARIABLES, SIZE_VARIABLES, local_rank, local_size, mpi_variable


@pytest.mark.parametrize("variable", RANK_VARIABLES)
def test_each_launcher(variable: str) -> None:
    assert local_rank({variable: "3", "SLURM_STEP_ID": "0"}) == (3, ())


def test_the_innermost_launcher_is_first() -> None:
    environ = dict.fromkeys(RANK_VARIABLES, "9") | {"SLURM_STEP_ID": "0"}
    for i, variable in enumerate(RANK_VARIABLES):
        environ[variable] = str(i)
        assert local_rank(environ)[0] == i
        del environ[variable]


@pytest.mark.parametrize(
    "environ", [{}, {"SLURM_LOCALID": "0"}, {"PMI_RANK": "1"}, {"PMIX_RANK": "1"}, {"RANK": "1"}, {"LOCAL_RANK": ""}]
)
def test_no_rank(environ: dict[str, str]) -> None:
    assert local_rank(environ) == (None, ())


@pytest.mark.parametrize("value", ["x", "-1", "1.0", "9" * 30, "١"])
def test_what_is_no_rank_is_warned_about_and_the_next_counts(value: str) -> None:
    rank, warnings = local_rank({"LOCAL_RANK": value, "MPI_LOCALRANKID": "2"})
    assert rank == 2
    assert [(warning.code, "LOCAL_RANK" in warning.message) for warning in warnings] == [("rank-unreadable", True)]


@pytest.mark.parametrize("variable", SIZE_VARIABLES)
def test_each_size(variable: str) -> None:
    assert local_size({variable: "8"}) == 8


@pytest.mark.parametrize(
    ("text", "host", "size"),
    [
        ("4", "0", 4),
        ("8(x2),4", "0", 8),
        ("8(x2),4", "1", 8),
        ("8(x2),4", "2", 4),
        ("8(x2),4", "3", None),
        ("2,3,4", "1", 3),
        ("4", "x", 4),
        ("garbage", "0", None),
        ("", "0", None),
        ("0", "0", None),
    ],
)
def test_slurms_tasks_of_this_host(text: str, host: str, size: int | None) -> None:
    environ = {"SLURM_STEP_TASKS_PER_NODE": text, "SLURM_NODEID": host}
    assert local_size(environ) is None
    assert local_size({**environ, "SLURM_STEP_ID": "0"}) == size


def test_mpi() -> None:
    assert mpi_variable({"OMPI_COMM_WORLD_RANK": "0"}) == "OMPI_COMM_WORLD_RANK"
    assert mpi_variable({"OMPI_COMM_WORLD_LOCAL_RANK": "0"}) is None
