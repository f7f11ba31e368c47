"""What a rank does that another launcher started: a collective, then a file with what the kernel shows of it.

Example: ``mpirun -n 2 numa-launch -- python -m tests.launchers.rank DIRECTORY mpi``.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.vm.truth import state


def all_reduced_by_torch() -> dict[str, Any]:
    """Return rank, size, and the sum of rank + 1 over all ranks, by gloo."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    numbers = torch.tensor([distributed.get_rank() + 1])
    distributed.all_reduce(numbers)
    found = {"rank": distributed.get_rank(), "size": distributed.get_world_size(), "total": int(numbers.item())}
    distributed.destroy_process_group()
    return found


def all_reduced_by_mpi() -> dict[str, Any]:
    """Return the same, by MPI, and which MPI that was."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return {
        "rank": world.rank,
        "size": world.size,
        "total": world.allreduce(world.rank + 1),
        "library": MPI.Get_library_version(),
    }


COLLECTIVES = {"torch": all_reduced_by_torch, "mpi": all_reduced_by_mpi, "none": dict[str, Any]}


def main(directory: str, collective: str, *arguments: str) -> None:
    """Write a file of this rank's own, by its PID: ranks that were mixed up must not hide each other."""
    found = COLLECTIVES[collective]()
    facts = {**found, "state": state(), "environ": dict(os.environ), "arguments": arguments}
    (Path(directory) / f"{os.getpid()}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
