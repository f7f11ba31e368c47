"""The command line: parse, call, print. Each subcommand is a file.

Example: ``numa-launch -- python worker.py`` binds, then becomes the command; ``numa-launch topo`` shows the machine.
Every error is one sentence on stderr that starts with ``Error: ``.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

import click

from numa_launch.cli.run import cli
from numa_launch.errors import NumaLaunchError


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run ``numa-launch`` with these arguments (default: the process's) and exit with its status."""
    sys.exit(status_of(sys.argv[1:] if args is None else list(args)))


def status_of(args: list[str]) -> int:
    """Return the exit status of a command line that does not become another command."""
    options, command = split_at_command(args, os.environ)
    try:
        status = cli.main(options, prog_name="numa-launch", standalone_mode=False, obj=command)
        if sys.stdout:
            sys.stdout.flush()
        return int(status or 0)
    except NumaLaunchError as error:
        return fail(str(error), error.exit_status)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        return fail(error.format_message(), error.exit_code, context.get_usage() if context else "")
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:  # `numa-launch topo | head`: the reader has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return fail(f"{error.filename or 'output'}: {error.strerror}", 1)


def split_at_command(args: list[str], environ: Mapping[str, str]) -> tuple[list[str], list[str] | None]:
    """Return the options, and COMMAND: what stands behind the first ``--``, None where there is none.

    ``torchrun --no-python numa-launch -- python train.py`` starts ``numa-launch python train.py``: argparse, which
    torchrun, accelerate and deepspeed use, drops a ``--`` right behind the program's name. So under them a first word
    that is neither option nor subcommand begins COMMAND.
    """
    if environ.keys() >= LOST_DASHES and args and not args[0].startswith("-") and args[0] not in subcommands():
        return [], args
    if "--" not in args:
        return args, None
    at = args.index("--")
    return args[:at], args[at + 1 :]


LOST_DASHES = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
"""What all launchers set that drop a ``--``; nobody sets them all by hand."""


def subcommands() -> list[str]:
    return cli.list_commands(click.Context(cli))


def fail(message: str, status: int, usage: str = "") -> int:
    try:
        click.echo(f"Error: {' '.join(message.split())}", err=True)
        if usage:
            click.echo(usage, err=True)
    except OSError:  # nobody reads it, but the status counts; Python would try again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return status
