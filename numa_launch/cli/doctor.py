"""``numa-launch doctor``: can these processes be bound here, will they be, and if not, what is the one thing to do.

Example: ``numa-launch doctor --json | jq .fix``. It takes the options of a run: it says what that would do.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from numa_launch.apply.command import own_environment
from numa_launch.cli.options import options_of, plan_options
from numa_launch.cli.request import backend_for, circumstances_of, request
from numa_launch.cli.show import SCHEMA, dump, gpu_json, note_json, table_of, wide_console
from numa_launch.doctor.check import NOT_CHECKED
from numa_launch.doctor.examine import Asked, Report, examine
from numa_launch.log import LOGGER
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine

if TYPE_CHECKING:
    from numa_launch.doctor.check import Check

STYLES = {"fail": "bold red", "warning": "yellow", "note": "cyan", "ok": "green", "not checked": "dim"}


@click.command()
@plan_options
@click.option("--root", metavar="DIR|FILE", help="Examine the machine captured in DIR or FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, /, **values: Any) -> int:
    """Say whether what you start here would be bound, and if not, what to do.

    It takes the options of a run, tries what a run would need, and changes nothing. Exit status: 0 where all would be
    bound, 1 where not, 2 after misuse.
    """
    options = options_of(ctx, **values, dry_run=True)
    environ = own_environment()
    logging.getLogger(LOGGER).setLevel(logging.CRITICAL)  # all that is to be said is in the checks
    machine = read_machine("/" if options.root is None else options.root, vendor=options.vendor, environ=environ)
    asked = request(options, machine, environ)
    live = options.root is None
    backend = backend_for(asked, environ) if live else None
    circumstances = circumstances_of(options, asked, backend)
    report = examine(machine, Asked(asked.config, asked.processes, circumstances, asked.warnings), backend, live)
    if options.as_json:
        dump(report_json(machine, report))
    else:
        print_report(report)
    return 0 if report.would_bind else 1


def report_json(machine: Machine, report: Report) -> dict[str, Any]:
    """Return one object of schema 1; the names of the checks are stable."""
    return {
        "schema": SCHEMA,
        "mode": report.plan.mode if report.plan else None,
        "can_bind": report.can_bind,
        "would_bind": report.would_bind,
        "verdict": report.verdict,
        "fix": report.fix or None,
        "skip_reason": note_json(report.plan.skip_reason) if report.plan else None,
        "checks": [check_json(check) for check in report.checks],
        "gpus": [
            {**gpu_json(i, gpu), "claims": [{"source": source, "node": node} for source, node in gpu.claims]}
            for i, gpu in enumerate(machine.visible_gpus)
        ],
    }


def check_json(check: "Check") -> dict[str, Any]:
    return {
        "name": check.name,
        "status": check.status,
        "code": check.code,
        "message": check.message,
        "fix": check.fix or None,
    }


def print_report(report: Report) -> None:
    """Print a line for each check, the verdict and what to do."""
    from rich.text import Text

    console = wide_console()
    table = table_of("check", "", "what was found")
    for check in rows_of(report.checks):
        found = check.message + (f"\n-> {check.fix}" if check.fix and check.status not in ("ok", "not checked") else "")
        table.add_row(check.name, Text(check.status, style=STYLES[check.status]), found)
    console.print(table)
    console.print()
    yes_or_no = {True: "yes", False: "no"}
    console.print(f"can be bound here: {yes_or_no[report.can_bind]}; will be, so asked: {yes_or_no[report.would_bind]}")
    console.print(report.verdict)
    if report.fix:
        console.print(f"to do: {report.fix}")


def rows_of(checks: Sequence["Check"]) -> list["Check"]:
    """Return the checks to show; those that only the host itself can show are one."""
    alike = [check for check in checks if check.message == NOT_CHECKED]
    rows = [check for check in checks if check not in alike]
    if alike:
        names = ", ".join(check.name for check in alike)
        rows.append(alike[0]._replace(name="on the host only", message=names))
    return rows
