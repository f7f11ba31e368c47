"""Which rank this process is, and how many there are, as its launcher says in the environment.

Example: under torchrun ``local_rank({"LOCAL_RANK": "3"})`` is (3, ()). PMI_RANK and PMIX_RANK are global, never local.
"""

import re
from collections.abc import Mapping

from numa_launch.idsets import shortened
from numa_launch.reasons import Note, note

RANK_VARIABLES = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
)
"""The innermost launcher's first: a torchrun inside srun has both set."""

SIZE_VARIABLES = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
)

MPI_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def local_rank(environ: Mapping[str, str]) -> tuple[int | None, tuple[Note, ...]]:
    """Return the local rank, None where no launcher set one, and a warning for each variable that holds no number."""
    warnings: list[Note] = []
    for variable in RANK_VARIABLES:
        value = environ.get(variable, "").strip()
        # An sbatch script has SLURM_LOCALID=0 and is no task.
        if not value or (variable == "SLURM_LOCALID" and "SLURM_STEP_ID" not in environ):
            continue
        if re.fullmatch("[0-9]{1,9}", value):
            return int(value), tuple(warnings)
        warnings.append(note("rank-unreadable", variable=variable, value=shortened(value)))
    return None, tuple(warnings)


def local_size(environ: Mapping[str, str]) -> int | None:
    """Return the number of ranks on this host, None where no launcher said."""
    for variable in SIZE_VARIABLES:
        value = environ.get(variable, "").strip()
        if re.fullmatch("[0-9]{1,9}", value) and int(value):
            return int(value)
    return slurm_tasks_here(environ) if "SLURM_STEP_ID" in environ else None


def slurm_tasks_here(environ: Mapping[str, str]) -> int | None:
    """Return this host's number in SLURM_STEP_TASKS_PER_NODE: ``8(x2),4`` is 8, 8, 4 for SLURM_NODEID 0, 1, 2."""
    host = environ.get("SLURM_NODEID", "0")
    left = int(host) if re.fullmatch("[0-9]{1,9}", host) else 0
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part.strip())
        if not found:
            return None
        hosts = int(found[2] or 1)
        if left < hosts:
            return int(found[1]) or None
        left -= hosts
    return None


def mpi_variable(environ: Mapping[str, str]) -> str | None:
    """Return the variable that shows this to be an MPI or PMI task, None where it is none."""
    return next((name for name in MPI_VARIABLES if name in environ), None)
