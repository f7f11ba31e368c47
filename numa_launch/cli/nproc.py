"""``numa-launch --nproc N -- COMMAND``: start N bound copies on this host, and stay until they have ended.

Example: ``numa-launch --nproc 8 -- python train.py`` sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR
and MASTER_PORT, as torchrun does.
"""

import time
from collections.abc import Mapping, Sequence

import click

from numa_launch.apply.command import check_command
from numa_launch.apply.outcome import report
from numa_launch.apply.start import Start, Starter
from numa_launch.cli.options import Options
from numa_launch.cli.ranks import RANK_VARIABLES
from numa_launch.cli.request import backend_for, circumstances_of, of_rank, request
from numa_launch.launchers.local import GRACE_S, Rank, Settings, meeting_point, rank_variables, run
from numa_launch.machine.files import read_text
from numa_launch.machine.read import read_machine
from numa_launch.observe.state import affinity_state
from numa_launch.plan.decide import plan


def run_copies(options: Options, command: list[str], environ: Mapping[str, str]) -> None:
    """Start the copies and serve them until all have ended; raises RanksError with the first failure's status."""
    size = options.nproc
    assert size is not None
    check_copies(options)
    machine = read_machine(
        vendor=options.vendor, environ=environ, ask_driver=options.bind is not False and options.map_by == "gpu"
    )
    outside = {name: value for name, value in environ.items() if name not in RANK_VARIABLES}
    asked = request(options._replace(kind="worker", dry_run=True), machine, outside)
    backend = backend_for(asked, environ)
    circumstances = circumstances_of(options, asked, backend)
    processes = [of_rank(asked.config, machine, rank) for rank in range(size)]
    path = check_command(command[0], environ)
    made = plan(machine, asked.config, processes=processes, circumstances=circumstances)
    report(made._replace(warnings=made.warnings + asked.warnings))
    began_s = time.monotonic()
    starter = Starter(machine, made.mode, asked.config.strict, backend)
    starts = [starter.start(binding) for binding in made.processes]
    where = meeting_point(environ)
    ranks = [
        Rank(
            start.backend[0] if start.backend else path,
            (*start.backend, "--") if start.backend else (),
            {**start.variables, **rank_variables(rank, size), **where},
        )
        for rank, start in enumerate(starts)
    ]
    look = Look(starts) if options.report else None
    grace_s = GRACE_S if options.grace is None else options.grace
    run(ranks, command, environ, Settings(grace_s, not options.no_prefix, options.log_dir, look), began_s)


def check_copies(options: Options) -> None:
    """Raise a usage error for options that cannot hold for all ranks of this host."""
    for name, given in (
        ("--rank", options.rank is not None),
        ("--kind EngineCore", options.kind == "EngineCore"),
        ("--nnodes (srun and torchrun number the ranks of several hosts)", options.nnodes > 1),
    ):
        if given:
            raise click.UsageError(
                f"--nproc starts all the ranks of one host, so it does not go with {name}", click.get_current_context()
            )


class Look:
    """What the kernel shows of a rank, None while the backend has not become COMMAND yet."""

    def __init__(self, starts: Sequence[Start]) -> None:
        self._starts = starts

    def __call__(self, rank: int, pid: int) -> str | None:
        command_line = read_text(f"/proc/{pid}/cmdline")
        before = "".join(f"{argument}\0" for argument in self._starts[rank].backend)
        if not command_line or (before and command_line.startswith(before)):
            return None
        return affinity_state(f"rank {rank} (PID {pid})", pid)
