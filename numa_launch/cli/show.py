"""A plan, printed for people and for programs.

Example: ``print_json(plan, launched, ["python", "worker.py"])`` prints one object of schema 1.
"""

import contextlib
import importlib
import os
import shlex
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from numa_launch.apply.command import own_environment
from numa_launch.apply.numactl import numactl_args
from numa_launch.cli.boxes import fold
from numa_launch.idsets import format_ids
from numa_launch.machine.gpu import Gpu
from numa_launch.plan.model import Binding, Plan
from numa_launch.reasons import Note, counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCHEMA = 1

ARGUMENT_WIDTH = 40
"""Arguments up to this long stay whole, for copying, where a terminal is too narrow for all columns."""


def note_json(said: Note | None) -> dict[str, str] | None:
    return None if said is None else {"code": said.code, "message": said.message}


def gpu_json(index: int | None, gpu: Gpu) -> dict[str, Any]:
    return {"index": index, "bdf": gpu.bdf, "uuid": gpu.uuid, "node": gpu.node, "source": gpu.source}


def binding_json(binding: Binding) -> dict[str, Any]:
    return {
        "kind": binding.kind,
        "local_rank": binding.local_rank,
        "dp_local_rank": binding.dp_local_rank,
        "gpu_index": binding.gpu_index,
        "nodes": list(binding.nodes),
        "cpus": format_ids(binding.cpus),
        "memory_nodes": list(binding.memory_nodes),
        "numactl_args": numactl_args(binding),
        "reasons": [note_json(reason) for reason in binding.reasons],
    }


def plan_json(made: Plan, launched: Binding | None, command: list[str]) -> dict[str, Any]:
    """Return the plan as one object of schema 1."""
    return {
        "schema": SCHEMA,
        "mode": made.mode,
        "bound": made.bound,
        "skip_reason": note_json(made.skip_reason),
        "gpus": [gpu_json(i, gpu) for i, gpu in enumerate(made.gpus)],
        "processes": [binding_json(binding) for binding in made.processes],
        "warnings": [note_json(said) for said in made.warnings],
        "command": command,
        "launched": binding_json(launched) if launched else None,
    }


def print_json(made: Plan, launched: Binding | None, command: list[str]) -> None:
    """Print the plan as one object of schema 1."""
    dump(plan_json(made, launched, command))


def dump(document: dict[str, Any]) -> None:
    import json

    click.echo(json.dumps(document, indent=1))


def prepare_tables() -> None:
    """Import what prints tables in a thread, while this process waits for the driver: it saves a fifth of topo."""

    def load() -> None:
        with contextlib.suppress(ImportError):
            importlib.import_module("rich.console")
            importlib.import_module("rich.table")

    threading.Thread(target=load, daemon=True).start()


def wide_console() -> "Console":
    """Return a console as wide as the terminal; in a pipe as wide as the text, so that no line is broken.

    In the C locale all of stdout is ASCII from then on.
    """
    from rich.console import Console

    restrict_stdout()
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    if os.environ.get("NO_COLOR"):  # neither colours nor bold: rich would leave the latter
        plain["color_system"] = None
    console = Console(**plain)
    if console.is_terminal:
        return console if console.width > 0 else Console(**plain, width=80)
    return Console(**plain, width=100_000)


def restrict_stdout() -> None:
    """Have stdout print ASCII only where the locale does not promise that more is shown."""
    if sys.stdout and not may_print_unicode(own_environment()) and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="ascii", errors="replace")


def may_print_unicode(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal of this locale shows more than ASCII, whatever Python makes of the C locale."""
    if environ.get("PYTHONUTF8") == "1" or environ.get("PYTHONIOENCODING"):
        return True
    locale = next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), "C")
    return locale.split(".")[0] not in ("C", "POSIX") or "utf" in locale.lower()


def table_of(*titles: str) -> "Table":
    """Return an empty table whose cells are folded, not cut, where the terminal is narrow."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def print_plan(made: Plan, launched: Binding | None, command: list[str]) -> None:
    """Print the plan as a table, with what is to be said of it below."""
    console = wide_console()
    bound = len(made.bound_processes)
    partly = f", {bound} of {counted(len(made.processes), 'process')}" if 0 < bound < len(made.processes) else ""
    console.print(f"mode {made.mode}: {'bound' if made.bound else 'unbound'}{partly}")
    if made.skip_reason:
        console.print(f"why: {made.skip_reason.message} ({made.skip_reason.code})")
    rows = [(binding.name, binding) for binding in made.processes]
    if launched:
        rows.append((f"COMMAND ({launched.name})", launched))
    table = table_of("process", "GPU", "node", "numactl arguments", "reasons")
    longest = max((len(arg) for _, binding in rows for arg in numactl_args(binding)), default=0)
    table.columns[3].min_width = min(longest, ARGUMENT_WIDTH, console.width // 3)
    codes = {reason.code for _, binding in rows for reason in binding.reasons}
    table.columns[4].min_width = min(max(map(len, codes), default=0), console.width // 3)  # a code is looked up whole
    width = max(ARGUMENT_WIDTH, console.width // 3) if console.is_terminal else console.width
    for name, binding in rows:
        args = "\n".join(part for arg in numactl_args(binding) for part in fold(arg, width)) or "(unbound)"
        reasons = "\n".join(dict.fromkeys(reason.code for reason in binding.reasons))
        table.add_row(name, gpu_text(made, binding), format_ids(binding.nodes), args, reasons)
    console.print(table)
    for reason in dict.fromkeys(reason for _, binding in rows for reason in binding.reasons):
        console.print(f"{reason.code}: {reason.message}")
    for said in made.warnings:
        console.print(f"warning: {said.message} ({said.code})")
    if command:
        console.print(f"COMMAND: {shlex.join(command)}")


def gpu_text(made: Plan, binding: Binding) -> str:
    """Return a process's gpu index, and that GPU's PCI address where it is known."""
    if binding.gpu_index is None:
        return ""
    bdf = made.gpus[binding.gpu_index].bdf if binding.gpu_index < len(made.gpus) else None
    return f"{binding.gpu_index} {bdf or ''}".rstrip()
