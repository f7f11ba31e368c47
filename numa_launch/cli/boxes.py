"""A machine as boxes in a terminal: each node's CPUs, memory and GPUs, and what of them this process may use.

Example: ``print_boxes(console, boxes_of(machine))``.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from numa_launch.cli.scene import Box, columns_for
from numa_launch.idsets import format_ids

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST = 26
"""Columns of the narrowest box: it holds a CPU list of two ranges; longer lists are folded if more boxes fit so."""

Line = tuple[str, str]
"""Text and its style."""


def lines_of(box: Box) -> list[Line]:
    """Return what stands in a box."""
    lines: list[Line] = []
    if box.nodes:
        lines.append((f"CPUs {format_ids(box.cpus) or 'none'}", ""))
        if box.cpus:
            lines.append(yours(box))
        lines.append((box.memory, "" if box.memory_usable else "yellow"))
    visible = [gpu.label for gpu in box.gpus if gpu.gpu_index is not None]
    if visible:
        lines.append((f"GPU {' '.join(visible)}", "bold green"))
    hidden = len(box.gpus) - len(visible)
    if hidden:
        lines.append((f"GPU {'- ' * hidden}(hidden)", "dim"))
    return lines


def yours(box: Box) -> Line:
    """Return which of a node's CPUs this process may use."""
    if box.usable == box.cpus:
        return f"yours: all {len(box.cpus)}", ""
    if not box.usable:
        return "yours: none", "red"
    return f"yours: {format_ids(box.usable)}", "yellow"


def print_boxes(console: "Console", boxes: Sequence[Box]) -> None:
    """Print the boxes side by side, as many as fit."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    lines = [lines_of(box) for box in boxes]
    longest = max(len(text) for each in lines for text, _ in each)
    columns = columns_for(len(boxes), console.width // min(NARROWEST, longest + 4, console.width))
    width = min(console.width // columns, max(longest + 4, NARROWEST))
    for first in range(0, len(boxes), columns):
        row = range(first, min(first + columns, len(boxes)))
        folded = [[(part, style) for text, style in lines[i] for part in fold(text, width - 4)] for i in row]
        height = max(map(len, folded)) + 2
        grid = Table.grid()
        for _ in row:
            grid.add_column(width=width)
        panels = [
            Panel(
                Text("\n", overflow="crop", no_wrap=True).join(Text(text, style) for text, style in own),
                title=Text(boxes[i].title, "bold"),
                title_align="left",
                width=width,
                height=height,
            )
            for i, own in zip(row, folded, strict=True)
        ]
        grid.add_row(*panels)
        console.print(grid)


def fold(text: str, width: int) -> list[str]:
    """Return the text in lines, broken behind commas and blanks where there are any."""
    width = max(1, width)
    lines = [""]
    for word in re.findall(r"[^, ]*[, ]?", text):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines]
