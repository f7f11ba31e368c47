"""Under Open MPI and MPICH: collectives work, bound or not, and what mpirun itself binds is respected."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from numa_launch.idsets import format_ids, parse_ids
from numa_launch.machine.handover import VARIABLE
from tests.host import ALL_ALLOWED, ALLOWED, CPU_A, CPU_B, needs_memory_policy
from tests.launchers.started import (
    FOUR_LISTS,
    FOUR_PLACES,
    HOW,
    NUMA_LAUNCH,
    TORCHRUN,
    Started,
    needs_torchrun,
    needs_two_cpus,
    on_two_nodes,
    rank,
    started,
)
from tests.live import needs_namespaces

OPEN_MPI, HYDRA = "mpirun.openmpi", "mpirun.mpich"
"""As Debian calls them, since both may be there."""

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_plm_rsh_agent": "false"}

LIBMPICH = next(Path("/usr/lib").glob("*/libmpich.so.12"), None)
"""Elsewhere, and where mpi4py looks, it is libmpi.so.12."""

needs_open_mpi = pytest.mark.skipif(shutil.which(OPEN_MPI) is None, reason=f"Open MPI is missing: {HOW}")
needs_mpich = pytest.mark.skipif(not (shutil.which(HYDRA) and LIBMPICH), reason=f"MPICH is missing: {HOW}")
needs_mpi4py = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason=f"mpi4py is missing: {HOW}")

MPIS = [
    pytest.param((OPEN_MPI, "--oversubscribe", "--bind-to", "none"), marks=needs_open_mpi, id="openmpi"),
    pytest.param((HYDRA,), marks=needs_mpich, id="mpich"),
]

Run = Callable[..., Started]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what runs an mpirun whose ranks' mpi4py finds the library of that MPI."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    if LIBMPICH:
        (libraries / "libmpi.so.12").symlink_to(LIBMPICH)
    mpich = {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(libraries)}

    def run_mpi(*line: str, directory: Path = tmp_path) -> Started:
        return started(directory, *line, env=mpich if line[0] == HYDRA else AS_ROOT)

    return run_mpi


LIBRARIES = {OPEN_MPI: "Open MPI", HYDRA: "MPICH"}


@needs_mpi4py
@needs_two_cpus
@needs_memory_policy
@pytest.mark.parametrize("mpi", MPIS)
def test_every_rank_is_on_its_cpus_and_they_all_reduce(tmp_path: Path, run: Run, mpi: tuple[str, ...]) -> None:
    done = run(*mpi, "-n", "4", NUMA_LAUNCH, *FOUR_LISTS, "--", *rank(tmp_path, "mpi"))
    assert done.status == 0, done.stderr
    assert done.collective == [(i, 4, 10) for i in range(4)]
    assert done.places == FOUR_PLACES
    assert all(facts["library"].startswith(LIBRARIES[mpi[0]]) for facts in done.ranks)
    assert done.stderr.count("numa-launch: binding explicitly inside an MPI or PMI task") == 4


@needs_mpi4py
@pytest.mark.parametrize("mpi", MPIS)
def test_unbound_they_all_reduce_as_well(tmp_path: Path, run: Run, mpi: tuple[str, ...]) -> None:
    done = run(*mpi, "-n", "4", NUMA_LAUNCH, "--no-bind", "--", *rank(tmp_path, "mpi"))
    assert done.status == 0, done.stderr
    assert done.collective == [(i, 4, 10) for i in range(4)]
    assert done.places == [(ALL_ALLOWED, "default")] * 4
    assert not any(VARIABLE in facts["environ"] for facts in done.ranks)


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize(
    ("command", "statuses"),
    [
        (["sh", "-c", "exit $((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} * 7))"], {7}),
        (["sh", "-c", "kill -9 $$"], {137, 9}),  # Open MPI, MPICH
        (["no-such-command"], {127}),
    ],
)
def test_how_a_rank_ends_is_what_mpirun_ends_with(
    run: Run, mpi: tuple[str, ...], command: list[str], statuses: set[int]
) -> None:
    done = run(*mpi, "-n", "2", NUMA_LAUNCH, f"--numa-cpus={CPU_A}", f"--numa-cpus={CPU_B}", "--", *command)
    assert done.status in statuses
    assert ("Error: no-such-command: command not found\n" in done.stderr) == (statuses == {127})


OF_EACH_RUN = ("OMPI_MCA_ess", "OMPI_MCA_orte", "OMPI_ARGV", "OMPI_COMMAND", "OMPI_FILE_LOCATION", "PMIX_")
"""Open MPI's addresses and directories, and the command line as it was given."""


@pytest.mark.parametrize("mpi", MPIS)
def test_nothing_else_is_different(tmp_path: Path, run: Run, mpi: tuple[str, ...]) -> None:
    seen = []
    for name, ours in (("plain", []), ("bound", [NUMA_LAUNCH, f"--numa-cpus={CPU_B}", "--"])):
        directory = tmp_path / name
        directory.mkdir()
        done = run(*mpi, "-n", "1", *ours, *rank(directory), directory=directory)
        seen.append(done.ranks[0]["environ"])
    plain, bound = seen
    assert plain.keys() <= bound.keys()
    differs = {name for name in bound if bound[name] != plain.get(name)}
    assert {name for name in differs if not name.startswith(OF_EACH_RUN)} == {VARIABLE}


@pytest.fixture
def given(run: Run, tmp_path: Path) -> list[str]:
    """Return the CPUs that Open MPI's own default leaves each of two ranks: a core."""
    directory = tmp_path / "given"
    directory.mkdir()
    cpus = run(OPEN_MPI, "-n", "2", *rank(directory), directory=directory).cpus
    if len(cpus) < 2 or ALL_ALLOWED in cpus:
        pytest.skip("Open MPI binds no two ranks here")
    return cpus


@needs_open_mpi
@needs_two_cpus
class TestOpenMpisOwnBinding:
    """Its default for two ranks is a core each."""

    @needs_namespaces
    def test_auto_mode_respects_it(self, tmp_path: Path, run: Run, given: list[str]) -> None:
        machine = on_two_nodes(tmp_path / "root")
        done = run(OPEN_MPI, "-n", "2", *machine, NUMA_LAUNCH, "--", *rank(tmp_path))
        assert done.status == 0, done.stderr
        assert done.cpus == given
        assert done.stderr.count("staying unbound (affinity-constrained)") == 2
        assert "mpirun --bind-to none" in done.stderr

    @needs_namespaces
    def test_auto_mode_binds_where_it_is_switched_off(self, tmp_path: Path, run: Run) -> None:
        machine = on_two_nodes(tmp_path / "root")
        done = run(OPEN_MPI, "--bind-to", "none", "-n", "2", *machine, NUMA_LAUNCH, "--", *rank(tmp_path))
        assert done.status == 0, done.stderr
        assert done.cpus == [str(CPU_B), str(CPU_A)]

    def test_explicit_mode_binds_within_it(self, tmp_path: Path, run: Run, given: list[str]) -> None:
        lists = [f"--numa-cpus={cpus},{format_ids(set(ALLOWED) - parse_ids(cpus))}" for cpus in given]
        done = run(OPEN_MPI, "-n", "2", NUMA_LAUNCH, *lists, "--", *rank(tmp_path))
        assert done.status == 0, done.stderr
        assert done.cpus == given
        assert done.stderr.count("binding explicitly inside an MPI or PMI task") == 2

    @pytest.mark.parametrize("strict", [False, True])
    def test_lists_outside_it_leave_a_rank_where_it_is(
        self, tmp_path: Path, run: Run, given: list[str], strict: bool
    ) -> None:
        lists = [f"--numa-cpus={cpus}" for cpus in reversed(given)]
        options = ["--strict", *lists] if strict else lists
        done = run(OPEN_MPI, "-n", "2", NUMA_LAUNCH, *options, "--", *rank(tmp_path))
        assert done.status == (1 if strict else 0)
        assert done.cpus == ([] if strict else given)
        assert "mpirun --bind-to none" in done.stderr


@needs_open_mpi
@needs_torchrun
@needs_two_cpus
def test_torchruns_rank_counts_before_that_of_the_mpi_around_it(tmp_path: Path, run: Run) -> None:
    lists = [f"--numa-cpus={CPU_A}", f"--numa-cpus={CPU_B}"]
    line = [str(TORCHRUN), "--no-python", "--nproc-per-node", "2", NUMA_LAUNCH, *lists, "--", *rank(tmp_path)]
    done = run(OPEN_MPI, "--bind-to", "none", "-n", "1", *line)
    assert [facts["environ"]["OMPI_COMM_WORLD_LOCAL_RANK"] for facts in done.ranks] == ["0", "0"]
    assert done.cpus == [str(CPU_A), str(CPU_B)]
