"""``numa-launch [OPTIONS] -- COMMAND``: bind, then become COMMAND; with ``--dry-run``, show the plan instead.

Example: ``LOCAL_RANK=3 numa-launch -- python train.py`` binds to the node of GPU 3 and becomes python.
"""

import contextlib
import logging
import shlex
from collections.abc import Mapping
from typing import Any

import click

from numa_launch.apply.command import become, check_command, own_environment
from numa_launch.apply.outcome import report
from numa_launch.apply.start import Starter
from numa_launch.cli.options import NPROC_ONLY, Options, launch_options, options_of
from numa_launch.cli.request import Request, backend_for, circumstances_of, request
from numa_launch.errors import ConfigError, StrictError
from numa_launch.log import LOGGER
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from numa_launch.plan.decide import plan
from numa_launch.plan.model import Circumstances, Plan
from numa_launch.reasons import note

EXAMPLES = """\b
Examples:
  numa-launch -- python worker.py            bind to its GPU's node, and run
  numa-launch --dry-run                      show what would be bound, and why
  numa-launch --dry-run --root host.tar.gz   plan for another machine (numa-launch capture)
  numa-launch --nproc 8 -- python train.py   start eight ranks, each bound to its GPU's node
  numa-launch --map rank --nproc 4 --dry-run spread four ranks over the nodes
  numa-launch --numa-nodes 0,1 --rank 1 -- python worker.py
  torchrun --no-python --nproc-per-node 8 numa-launch -- python train.py

--bind, --numa-nodes, --numa-cpus, --memory, --strict, --map, --vendor and --backend can also be set in the environment:
NUMA_LAUNCH_BIND=0, NUMA_LAUNCH_NUMA_CPUS="0-3 4-7", ...
"""


class Commands(click.Group):
    """The subcommands; any other word is a COMMAND that lacks its ``--``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.list_commands(ctx):
            return super().resolve_command(ctx, args)
        options = ctx.meta["numa_launch.args"][: -len(args)]
        right = shlex.join(["numa-launch", *options, "--", *args])
        lost = "" if options else " (if it was there, what started this dropped it: put one more before numa-launch)"
        raise click.UsageError(f"no subcommand {args[0]!r}; to run it as COMMAND, put -- before it: {right}{lost}")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["numa_launch.args"] = list(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["capture", "doctor", "srun", "topo"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "topo":
            from numa_launch.cli.topo import topo

            return topo
        if cmd_name == "doctor":
            from numa_launch.cli.doctor import doctor

            return doctor
        if cmd_name == "capture":
            from numa_launch.cli.capture import capture

            return capture
        if cmd_name == "srun":
            from numa_launch.cli.srun import srun

            return srun
        return None


@click.command(
    cls=Commands,
    invoke_without_command=True,
    no_args_is_help=False,
    subcommand_metavar="-- COMMAND [ARGS]...",
    options_metavar="[OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog=EXAMPLES,
)
@launch_options
@click.option("-v", "--verbose", count=True, show_default=False, help="Say more.")
@click.option("-q", "--quiet", is_flag=True, help="Say errors only.")
@click.version_option(None, "--version", package_name="numa-launch", prog_name="numa-launch")
@click.pass_context
def cli(ctx: click.Context, /, verbose: int, quiet: bool, **values: Any) -> None:
    """Bind COMMAND to the NUMA node of its GPU, then become it (same PID, its exit status)."""
    set_up_logging(logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO)
    if ctx.invoked_subcommand:
        refuse_launch_options(ctx)
        return
    run(options_of(ctx, **values), ctx.obj, own_environment())


def set_up_logging(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("numa-launch: %(message)s"))
    logger = logging.getLogger(LOGGER)
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


def refuse_launch_options(ctx: click.Context) -> None:
    for param in ctx.command.params:
        given = ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
        if given and param.name not in ("verbose", "quiet"):
            raise click.UsageError(
                f"{param.opts[0]} is no option of {ctx.invoked_subcommand}; put its own options after that word"
            )
    if ctx.obj is not None and ctx.invoked_subcommand != "srun":
        raise click.UsageError(f"{ctx.invoked_subcommand} takes no COMMAND; to run one of that name, put -- before it")


def run(options: Options, command: list[str] | None, environ: Mapping[str, str]) -> None:
    """Show the plan, or bind and become the command."""
    to_run = [] if options.dry_run else check_run(options, command)
    if options.nproc is not None and not options.dry_run:
        from numa_launch.cli.nproc import run_copies

        run_copies(options, to_run, environ)
        return
    machine = read_machine(
        "/" if options.root is None else options.root,
        vendor=options.vendor,
        environ=environ,
        ask_driver=options.dry_run or (options.bind is not False and options.map_by == "gpu"),
    )
    asked = request(options, machine, environ)
    backend = backend_for(asked, environ)
    circumstances = circumstances_of(options, asked, backend)
    if options.dry_run:
        show(machine, asked, circumstances, command or [], options)
        return
    if asked.launched is None:
        raise ConfigError("--kind worker needs a rank: pass --rank, or start it under torchrun, srun or mpirun")
    path = check_command(to_run[0], environ)
    made = plan(machine, asked.config, processes=[asked.launched], circumstances=circumstances)
    report(made._replace(warnings=made.warnings + asked.warnings))
    started = Starter(machine, made.mode, asked.config.strict, backend).start(
        made.processes[0], asked.launched.over_all
    )
    become(path, to_run, {**environ, **started.variables}, backend=started.backend)


def check_run(options: Options, command: list[str] | None) -> list[str]:
    """Return COMMAND; raises for a command line that can only be planned, not run."""
    if options.svg is not None:
        raise click.UsageError("--svg goes with --dry-run", click.get_current_context())
    if options.as_json:
        raise click.UsageError("--json goes with --dry-run", click.get_current_context())
    if options.root is not None:
        raise click.UsageError("--root plans for a captured machine: add --dry-run", click.get_current_context())
    if options.nproc is None:
        for name in NPROC_ONLY:
            if getattr(options, name[2:].replace("-", "_")) not in (None, False):
                raise click.UsageError(f"{name} goes with --nproc", click.get_current_context())
    if not command:
        raise click.UsageError(
            "COMMAND is missing: numa-launch [OPTIONS] -- COMMAND, or numa-launch --dry-run for the plan alone",
            click.get_current_context(),
        )
    return command


def draw(machine: Machine, made: Plan, options: Options) -> None:
    """Draw the plan where that is asked for."""
    if options.svg is not None:
        from numa_launch.cli.output import write_file
        from numa_launch.cli.svg import plan_picture

        write_file(options.svg, plan_picture(machine, made).encode())


def show(machine: Machine, asked: Request, circumstances: Circumstances, command: list[str], options: Options) -> None:
    """Print the plan on stdout, and draw it where that is asked for."""
    from numa_launch.cli.show import print_json, print_plan

    made = plan(machine, asked.config, processes=asked.processes, circumstances=circumstances)
    missing = (note("numactl-missing"),) if circumstances.numactl_missing and made.bound else ()
    made = made._replace(warnings=made.warnings + asked.warnings + missing)
    launched = None
    if asked.launched is not None:
        # Where the processes shown can be bound but COMMAND itself cannot, it is left out.
        with contextlib.suppress(ConfigError, StrictError):
            launched = plan(machine, asked.config, processes=[asked.launched], circumstances=circumstances).processes[0]
    draw(machine, made, options)
    if options.svg == "-":
        return
    if options.as_json:
        print_json(made, launched, command)
    else:
        print_plan(made, launched, command)
