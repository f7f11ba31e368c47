"""A machine as an SVG picture: a box for each node with its CPUs, memory and GPUs, and each worker on its node.

Example: ``picture(machine, "mode auto", plan.processes)`` is the text of a file that any browser shows.
A CPU has the colour of the one worker that is bound to it.
"""

import colorsys
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from numa_launch.cli.boxes import fold
from numa_launch.cli.scene import Box, ShownGpu, boxes_of, columns_for
from numa_launch.idsets import format_ids
from numa_launch.machine.files import printable
from numa_launch.machine.model import Machine
from numa_launch.plan.model import Binding, Plan
from numa_launch.reasons import counted

WIDTH, PAD, GAP = 252, 12, 16
"""Of a box: its width, the space inside it and between boxes, in pixels."""
LINE, CHIP = 18, 22
"""The height of a line of text, and of a chip that stands for a GPU or a process."""
COLUMNS, COLUMNS_OF_MANY, MANY = 4, 6, 12
"""Boxes in a row, and in a row of more than so many boxes."""
CHARACTER = 6.6
"""About the width of a character of size 12."""

WHITE = "#ffffff"
FREE, FORBIDDEN, SHARED, INK, FAINT = "#c3ccd6", WHITE, "#8797a8", "#1d242c", "#68727d"
"""CPUs that are allowed, not allowed, and of several workers; text, and text that matters less."""

CELLS = ((128, 11, 16), (512, 7, 24), (65536, 4, 40))
"""Up to so many CPUs in a node: the size of a CPU's square, and squares in a row."""

MOST_NAMES = 4
"""Of a CPU's workers, in its tip; more are counted."""
MOST_LINES = 4
"""Of a CPU list; longer ones are cut, as the squares show the rest."""


class Part(NamedTuple):
    """Something drawn, `height` pixels high, as if its top left corner were 0, 0."""

    height: int
    body: str


def plan_picture(machine: Machine, made: Plan) -> str:
    """Return a picture of the machine with a plan's processes on their nodes."""
    bound = len(made.bound_processes)
    notes = [f"{said.message} ({said.code})" for said in (*filter(None, [made.skip_reason]), *made.warnings)]
    unbound = [binding.name for binding in made.processes if not binding.bound]
    if unbound:
        notes.insert(0, f"unbound: {', '.join(unbound)}")
    mode = f"mode {made.mode}: {bound} of {counted(len(made.processes), 'process')} bound"
    return picture(machine, mode, made.processes, notes)


def picture(machine: Machine, subtitle: str = "", processes: Sequence[Binding] = (), notes: Sequence[str] = ()) -> str:
    """Return the picture; `subtitle` is its second line, `processes` are drawn on their nodes, `notes` stand below."""
    workers = [binding for binding in processes if binding.kind == "worker" and binding.bound]
    colours = {worker: colour_of(i) for i, worker in enumerate(workers)}
    boxes = boxes_of(machine)
    columns = columns_for(len(boxes), COLUMNS_OF_MANY if len(boxes) > MANY else COLUMNS)
    width = max(columns * (WIDTH + GAP) - GAP, 2 * WIDTH + GAP)
    title = title_of(machine)
    parts = [Part(26, text(0, 18, title, size=16, weight="bold"))]
    if subtitle:
        parts.append(Part(LINE, text(0, 12, subtitle)))
    parts += [Part(LINE, text(0, 12, line, fill=FAINT)) for line in legend(machine, bool(processes), bool(colours))]
    parts.append(Part(GAP // 2, ""))
    for first in range(0, len(boxes), columns):
        row = [box_part(box, processes, colours) for box in boxes[first : first + columns]]
        height = max(part.height for part in row)
        drawn = [moved(i * (WIDTH + GAP), 0, frame(height) + part.body) for i, part in enumerate(row)]
        parts.append(Part(height + GAP, "".join(drawn)))
    for note in notes:
        parts += [Part(LINE, text(0, 12, line)) for line in folded(note, width)]
    return document(width, parts, title)


def document(width: int, parts: Sequence[Part], title: str) -> str:
    """Return the parts below each other as a whole SVG file."""
    whole = stacked(parts, 0)
    whole_width, whole_height = width + 2 * GAP, whole.height + 2 * GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole_width}" height="{whole_height}" '
        f'viewBox="0 0 {whole_width} {whole_height}" font-family="sans-serif" font-size="12">\n'
        f"<title>{escaped(title)}</title>\n"
        f'<rect width="100%" height="100%" fill="{WHITE}"/>\n'
        f"{moved(GAP, GAP, whole.body)}</svg>\n"
    )


def stacked(parts: Sequence[Part], pad: int) -> Part:
    """Return the parts below each other, with so much space around them."""
    body, y = [], pad
    for part in parts:
        body.append(moved(pad, y, part.body))
        y += part.height
    return Part(y + pad, "".join(body))


def legend(machine: Machine, planned: bool, coloured: bool) -> list[str]:
    lines = []
    if machine.online - machine.usable_cpus:
        lines.append("white: CPUs that this process may not use")
    if coloured:
        lines.append("a CPU has the colour of the worker that is bound to it; dark: of several")
    elif planned:
        lines.append("no worker is bound")
    return lines


def box_part(box: Box, processes: Sequence[Binding], colours: Mapping[Binding, str]) -> Part:
    """Return a node's box without its frame."""
    here = [binding for binding in processes if binding.cpus & box.cpus]
    parts = [heading(box), cells(box, [binding for binding in here if binding in colours], colours)]
    parts.append(chips([gpu_chip(shown) for shown in box.gpus]))
    parts.append(chips([process_chip(binding, colours.get(binding)) for binding in here]))
    return stacked(parts, PAD)


def heading(box: Box) -> Part:
    drawn = [text(0, 12, box.title, size=14, weight="bold")]
    if not box.nodes:
        return Part(24, drawn[0])
    cpus = f"CPUs {format_ids(box.cpus)}" if box.cpus else "no CPUs"
    lines = [box.memory, *folded(cpus, WIDTH - 2 * PAD)[:MOST_LINES]]
    drawn += [text(0, 32 + i * LINE, line, fill=FAINT) for i, line in enumerate(lines)]
    return Part(28 + LINE * len(lines), "".join(drawn))


def cells(box: Box, workers: Sequence[Binding], colours: Mapping[Binding, str]) -> Part:
    """Return a square for each CPU, in the order of their ids."""
    if not box.cpus:
        return Part(0, "")
    size, in_row = next((size, in_row) for most, size, in_row in CELLS if len(box.cpus) <= most)
    step = size + (2 if size > 4 else 1)
    of_cpus: dict[frozenset[int], list[Binding]] = {}
    for worker in workers:
        of_cpus.setdefault(worker.cpus, []).append(worker)
    drawn = []
    for place, cpu in enumerate(sorted(box.cpus)):
        own = [alike for cpus, alike in of_cpus.items() if cpu in cpus]
        count = sum(map(len, own))
        free = FREE if cpu in box.usable else FORBIDDEN
        fill = free if not own else colours[own[0][0]] if count == 1 else SHARED
        names = f", {count} workers" if count > MOST_NAMES else "".join(f", {b.name}" for alike in own for b in alike)
        square = f'<rect width="{size}" height="{size}" fill="{fill}" stroke="{FREE}"/>'
        tip = f"<title>{escaped(f'CPU {cpu}{names}')}</title>"
        drawn.append(moved(place % in_row * step, place // in_row * step, f"{tip}{square}"))
    return Part(-(-len(box.cpus) // in_row) * step + 8, "".join(drawn))


class Chip(NamedTuple):
    label: str
    fill: str
    dashed: bool = False
    tip: str = ""


def gpu_chip(shown: ShownGpu) -> Chip:
    hidden = shown.gpu_index is None
    tip = " ".join(filter(None, (shown.gpu.bdf, shown.gpu.name, shown.gpu.source)))
    return Chip(f"GPU {shown.label}", WHITE if hidden else "#e3f3dc", hidden, tip)


def process_chip(binding: Binding, colour: str | None) -> Chip:
    gpu = f" (GPU {binding.gpu_index})" if binding.gpu_index is not None else ""
    return Chip(f"{binding.name}{gpu}", colour or "#eef1f4", tip=f"CPUs {format_ids(binding.cpus)}")


def chips(every: Sequence[Chip]) -> Part:
    """Return chips side by side, in as many rows as they need."""
    drawn, x, y = [], 0, 0
    for chip in every:
        width = min(text_width(chip.label) + 16, WIDTH - 2 * PAD)
        if x and x + width > WIDTH - 2 * PAD:
            x, y = 0, y + CHIP + 4
        dashes = ' stroke-dasharray="3 2"' if chip.dashed else ""
        drawn.append(
            moved(
                x,
                y,
                f'<g><title>{escaped(chip.tip)}</title><rect width="{width}" height="{CHIP}" rx="6" fill="{chip.fill}" '
                f'stroke="{FAINT}"{dashes}/>{text(8, 15, fitted(chip.label, width - 12))}</g>',
            )
        )
        x += width + 6
    return Part(y + CHIP + 8 if every else 0, "".join(drawn))


def frame(height: int) -> str:
    return f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#f7f9fb" stroke="{FAINT}"/>\n'


def moved(x: int, y: int, body: str) -> str:
    return f'<g transform="translate({x} {y})">{body}</g>\n' if body else ""


def text(x: int, y: int, words: str, *, size: int = 12, weight: str = "", fill: str = INK) -> str:
    extra = f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}"{extra}>{escaped(words)}</text>\n'


def escaped(words: str) -> str:
    """Return the text as XML may hold it."""
    return escape(printable(words) or "")


def text_width(words: str) -> int:
    """Return about how wide a text of size 12 is."""
    return round(CHARACTER * len(words))


def fitted(words: str, width: int) -> str:
    """Return the text, its end left out where it is too long."""
    most = int(width / CHARACTER)
    return words if len(words) <= most else words[: max(1, most - 1)] + "…"


def folded(words: str, width: int) -> list[str]:
    """Return the text in lines."""
    return fold(words, max(20, int(width / CHARACTER)))


def colour_of(worker: int) -> str:
    """Return a light colour that is unlike its neighbours': hues apart by the golden angle."""
    red, green, blue = colorsys.hls_to_rgb(worker * 0.381966 % 1, 0.72, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def title_of(machine: Machine) -> str:
    """Return the machine in a line."""
    return (
        f"{counted(len(machine.nodes), 'node')}, {counted(len(machine.online), 'CPU')}, "
        f"{counted(len(machine.gpus), 'GPU')}"
    )
