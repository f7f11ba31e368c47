"""A plan, printed for people and for programs.

Example: ``print_json(plan, launched, ["python", "worker.py"])`` prints the object of CONTRACT.md section 7.
"""

import shlex
from typing import TYPE_CHECKING, Any

import click

from numa_launch.apply.numactl import numactl_args
from numa_launch.idsets import format_ids
from numa_launch.machine.model import Gpu, Note
from numa_launch.plan.model import Binding, Plan

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = 1


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


def print_json(made: Plan, launched: Binding | None, command: list[str]) -> None:
    """Print the plan as one object of schema 1."""
    dump(
        {
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
    )


def dump(document: dict[str, Any]) -> None:
    import json

    click.echo(json.dumps(document, indent=1))


def wide_console() -> "Console":
    """Return a console as wide as the terminal; in a pipe as wide as the text, so that no line is broken."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, emoji=False, width=100_000)


def print_plan(made: Plan, launched: Binding | None, command: list[str]) -> None:
    """Print the plan as a table, with what is to be said of it below."""
    from rich import box
    from rich.table import Table

    console = wide_console()
    console.print(f"mode {made.mode}: {'bound' if made.bound else 'unbound'}")
    if made.skip_reason:
        console.print(f"why: {made.skip_reason.message} ({made.skip_reason.code})")
    rows = [(described_process(binding), binding) for binding in made.processes]
    if launched:
        rows.append((f"COMMAND ({described_process(launched)})", launched))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("process", "GPU", "node", "CPUs", "numactl arguments", "reasons"):
        table.add_column(title, overflow="fold")
    for name, binding in rows:
        gpu = "" if binding.gpu_index is None else str(binding.gpu_index)
        args = " ".join(numactl_args(binding)) or "(unbound)"
        reasons = ", ".join(reason.code for reason in binding.reasons)
        table.add_row(name, gpu, format_ids(binding.nodes), format_ids(binding.cpus), args, reasons)
    console.print(table)
    for reason in dict.fromkeys(reason for binding in made.processes for reason in binding.reasons):
        console.print(f"{reason.code}: {reason.message}")
    for said in made.warnings:
        console.print(f"warning: {said.message} ({said.code})")
    if command:
        console.print(f"COMMAND: {shlex.join(command)}")


def described_process(binding: Binding) -> str:
    rank = "" if binding.kind == "EngineCore" else f" {binding.local_rank}"
    shard = f" of shard {binding.dp_local_rank}" if binding.dp_local_rank else ""
    return f"{binding.kind}{rank}{shard}"
