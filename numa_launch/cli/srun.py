"""``numa-launch srun``: become srun, with the binding of its tasks computed from the plan.

Example: ``numa-launch srun --ntasks-per-node 8 -p gpu -- python train.py``; ``--dry-run`` prints the line.
"""

import logging
import shlex
from typing import Any

import click

from numa_launch.apply.command import become, check_command, own_environment
from numa_launch.cli.options import AT_LEAST_1, DRY_RUN, NPROC_ONLY, SHOW_OPTIONS, F, Options, options_of, plan_options
from numa_launch.cli.request import config_of, spreads
from numa_launch.cli.run import check_run, draw
from numa_launch.launchers.srun_line import (
    CHOICES,
    Line,
    Step,
    given_options,
    said,
    srun_line,
    srun_plan,
    step_of,
    task_options,
)
from numa_launch.log import say_once
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from numa_launch.plan.model import Plan
from numa_launch.reasons import note

EXAMPLES = """\b
Examples:
  numa-launch srun --ntasks-per-node 8 -- python train.py            inside an allocation (sbatch, salloc)
  numa-launch srun --ntasks-per-node 8 -N 2 -p gpu -- python train.py
  numa-launch srun --ntasks-per-node 8 --dry-run -- python train.py  print the line; run nothing
"""

SPELLED_OTHERWISE = {
    "cpu-bind": "--cpu-bind",
    "ntasks-per-node": "--ntasks-per-node",
    "tasks-per-node": "--ntasks-per-node",
}
"""What srun also reads as our own two: abbreviations, ``--cpu_bind``, ``--tasks-per-node``. They would win."""


def show_options(function: F) -> F:
    """Add --dry-run and what goes with it to a click command."""
    for option in reversed([DRY_RUN, *SHOW_OPTIONS]):
        function = option(function)
    return function


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"], "show_default": True},
    options_metavar="[OPTIONS] [SRUN OPTIONS]",
    epilog=EXAMPLES,
)
@click.option("--ntasks-per-node", "ranks", type=AT_LEAST_1, metavar="N", help="Tasks on each host: ranks 0, 1, ...")
@click.option(
    "--cpu-bind",
    "method",
    type=click.Choice(CHOICES),
    default="auto",
    help="srun's method. auto: rank_ldom where that is right, else mask_cpu. none: do not bind.",
)
@plan_options
@show_options
@click.argument("srun_words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
@click.pass_context
def srun(ctx: click.Context, /, ranks: int | None, method: str, srun_words: tuple[str, ...], **values: Any) -> None:
    """Become srun with COMMAND, each task bound to the node of its GPU: task i of a host is rank i.

    Options that are not ours go to srun unchanged; ours may stand anywhere among them. --tp and the other sizes,
    --backend, and variables of ranks, play no part.
    """
    options = options_of(ctx, **values)
    command: list[str] = ctx.obj or []
    if not options.dry_run:
        if not command:
            raise click.UsageError("COMMAND is missing: numa-launch srun --ntasks-per-node N -- COMMAND", ctx)
        check_run(options, command)
    check_options(ctx, options, ranks, method, srun_words)
    environ = own_environment()
    machine = read_machine(
        "/" if options.root is None else options.root,
        vendor=options.vendor,
        environ=environ,
        ask_driver=method != "none" and options.bind is not False and options.map_by == "gpu",
    )
    step = step_of(srun_words, environ)
    made, line = planned(options, ranks, method, machine, step)
    is_off = made.skip_reason is not None and made.skip_reason.code == "disabled"
    if not is_off and options.root is None and not environ.get("SLURM_JOB_ID"):
        line = line._replace(warnings=(*line.warnings, note("login-node")))
    words = ["srun", *task_options(ranks, step), *line.added, *srun_words, *command]
    made = made._replace(warnings=line.warnings)
    draw(machine, made, options)
    if options.svg == "-":
        return
    if options.as_json:
        from numa_launch.cli.show import dump, plan_json

        dump({**plan_json(made, None, command), "srun": words})
        return
    for warned in made.warnings:
        say_once(logging.WARNING, said(warned, made))
    if options.dry_run:
        click.echo(shlex.join(words))
        return
    become(check_command("srun", environ), words, environ)


def check_options(
    ctx: click.Context, options: Options, ranks: int | None, method: str, srun_words: tuple[str, ...]
) -> None:
    """Raise a usage error for options that cannot be meant here."""
    typed = given_options(srun_words)
    for name, ours in SPELLED_OTHERWISE.items():
        if name in typed and (method != "none" or name == "cpu-bind"):
            raise click.UsageError(f"{typed[name][0]} is to be written {ours} here", ctx)
    if ranks is None and method != "none":
        raise click.UsageError("--ntasks-per-node N is missing: a binding has a place for each task of a host", ctx)
    for name, given, instead in (
        ("--nproc", options.nproc is not None, "--ntasks-per-node is srun's number of tasks on a host"),
        ("--rank", options.rank is not None, "srun starts all ranks"),
        ("--kind", options.kind is not None, "srun starts workers"),
        *(
            (name, any(word.split("=")[0] == name for word in srun_words), "it goes with --nproc")
            for name in NPROC_ONLY
        ),
    ):
        if given:
            raise click.UsageError(f"{name} does not go with srun: {instead}", ctx)


def planned(options: Options, ranks: int | None, method: str, machine: Machine, step: Step) -> tuple[Plan, Line]:
    """Return the plan of a host, and what binds as planned."""
    config, switched_off = config_of(options)
    off = "--cpu-bind none" if method == "none" else switched_off
    made = srun_plan(machine, config, ranks or 0, spread=spreads(options), switched_off=off)
    return made, srun_line(machine, config, made, method, step)
