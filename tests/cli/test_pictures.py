"""Machines as people see them: boxes in terminals of all kinds, and SVG pictures."""

import dataclasses
import io
import os
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from numa_launch import LaunchConfig, plan
from numa_launch.cli.boxes import fold
from numa_launch.cli.scene import boxes_of, columns_for, memory_text
from numa_launch.cli.svg import FORBIDDEN, SHARED, WIDTH, picture
from numa_launch.cli.topo import print_topo
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from numa_launch.machine.topology import Topology, read_topology
from tests.lay import FOUR_GPUS, TWO_NODES, Description, lay
from tests.machine.test_captures import captured, cases
from tests.terminal import in_terminal

RECORDED = Path(__file__).parent / "recorded"
ROOTS: dict[str, Description] = {
    "one": {"nodes": {"0": {"cpus": "0-7"}}, "gpus": [{"node": 0}]},
    "two": {**FOUR_GPUS, "allowed_cpus": "0-3,8-15"},
    "eight": {
        "nodes": {str(i): {"cpus": f"{8 * i}-{8 * i + 7},{64 + 8 * i}-{71 + 8 * i}"} for i in range(8)},
        "gpus": [{"node": node} for node in (3, 3, 1, 1, 7, 7, 5, 5)],
    },
    "thirty-six": {
        "nodes": {str(i): {"cpus": f"{4 * i}-{4 * i + 3}"} for i in range(36)},
        "gpus": [*({"node": 4 * i} for i in range(8)), {"node": -1}],
        "cpuset": "0-100",
    },
}


def shown(machine: Machine, topology: Topology, columns: int) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=columns, highlight=False, markup=False)
    print_topo(machine, topology, console)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


@pytest.mark.parametrize("file", cases(), ids=lambda path: path.stem)
def test_a_captured_machine_looks_as_it_was_looked_at(file: Path) -> None:
    text = shown(*captured(file), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert text == (RECORDED / f"{file.stem}.txt").read_text()


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("name", ROOTS)
def test_a_laid_machine_looks_as_it_was_looked_at(name: str, columns: int, tmp_path: Path) -> None:
    root = lay(tmp_path, ROOTS[name])
    machine = read_machine(root, environ={})
    text = shown(machine, read_topology(root, machine), columns)
    assert max(map(len, text.splitlines())) <= columns
    assert text == (RECORDED / f"{name}-{columns}.txt").read_text()


# --- Terminals

TOPO = [sys.executable, "-m", "numa_launch", "topo"]
ENVIRON = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}


def without_locale(**environ: str) -> dict[str, str]:
    kept = {name: value for name, value in ENVIRON.items() if not name.startswith("LC_") and name != "LANG"}
    return {**kept, **environ}


def test_a_terminal_has_boxes_in_colour_and_no_color_takes_every_escape_away(tmp_path: Path) -> None:
    command = [*TOPO, "--root", str(lay(tmp_path, ROOTS["two"]))]
    status, coloured = in_terminal(command, 80, ENVIRON)
    assert status == 0
    assert b"\x1b[" in coloured
    assert "╭─".encode() in coloured
    status, plain = in_terminal(command, 80, {**ENVIRON, "NO_COLOR": "1"})
    assert (status, b"\x1b" in plain) == (0, False)
    assert "╭─ node 0".encode() in plain


def test_a_pipe_has_a_plain_table(tmp_path: Path) -> None:
    done = subprocess.run([*TOPO, "--root", str(lay(tmp_path, ROOTS["two"]))], env=ENVIRON, capture_output=True)
    assert b"\x1b" not in done.stdout
    assert "╭".encode() not in done.stdout
    assert b"usable CPUs" in done.stdout


@pytest.mark.parametrize("locale", [{}, {"LANG": "C"}, {"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}], ids=str)
@pytest.mark.parametrize(
    "args", [["topo"], ["--dry-run", "--bind"], ["doctor"], ["topo", "--svg", "/nowhere/x.svg"]], ids=" ".join
)
@pytest.mark.parametrize("columns", [80, 20, 1])
def test_the_c_locale_has_ascii_in_any_terminal(
    columns: int, args: list[str], locale: dict[str, str], tmp_path: Path
) -> None:
    machine = {**FOUR_GPUS, "gpus": [{"node": 0, "name": "GPÜ ☃", "nvml_cpus": "0-7"}]}
    command = [*TOPO[:-1], *args, "--root", str(lay(tmp_path, machine))]
    status, text = in_terminal(command, columns, without_locale(**locale))
    assert status == (1 if "--svg" in args else 0)
    assert text.isascii()
    assert b"Traceback" not in text


def test_memory_in_words() -> None:
    assert [memory_text(kb) for kb in (None, 0, 16 << 10, 1 << 19, 64 << 20)] == [
        *("unknown", "none", "16 MiB", "0.5 GiB", "64.0 GiB"),
    ]


def test_rows_are_of_equal_length_as_far_as_that_goes() -> None:
    assert [columns_for(boxes, 3) for boxes in (1, 2, 3, 4, 8, 9)] == [1, 2, 3, 2, 3, 3]
    assert columns_for(5, 0) == 1


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("CPUs 0,4,8,12", 80, ["CPUs 0,4,8,12"]),
        ("CPUs 0,4,8,12", 9, ["CPUs 0,4,", "8,12"]),
        ("memory 15.0 GiB each", 12, ["memory 15.0", "GiB each"]),
        ("CPUs 1000-1024", 6, ["CPUs", "1000-1", "024"]),
        ("abc", 1, ["a", "b", "c"]),
        ("", 5, [""]),
    ],
)
def test_lines_are_broken_behind_commas_and_blanks(text: str, width: int, lines: list[str]) -> None:
    assert fold(text, width) == lines


def test_nodes_that_are_alike_and_empty_are_one_box(tmp_path: Path) -> None:
    nodes = {"0": {"cpus": "0-3"}, **{str(i): {"cpus": "", "mem_mb": 0} for i in (1, 2, 3, 7)}, "8": {"cpus": "4-7"}}
    machine = read_machine(lay(tmp_path, {"nodes": nodes, "gpus": [{"node": 2}]}), environ={})
    assert [box.title for box in boxes_of(machine)] == ["node 0", "node 1", "node 2", "nodes 3,7", "node 8"]


# --- Pictures

SVG = "{http://www.w3.org/2000/svg}"


def node_groups(root: ET.Element) -> dict[str, ET.Element]:
    """Return the drawn boxes by their titles."""
    boxes = {}
    for group in root.iter(f"{SVG}g"):
        children = list(group)
        if children and children[0].get("width") == str(WIDTH):
            title = next(text.text for text in group.iter(f"{SVG}text"))
            boxes[str(title)] = group
    return boxes


def texts(element: ET.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def run(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*TOPO[:-1], *args], env=ENVIRON, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ROOTS)
def test_a_plan_is_drawn_with_each_worker_on_its_node(name: str, tmp_path: Path) -> None:
    root, file = lay(tmp_path / "root", ROOTS[name]), tmp_path / "plan.svg"
    lists = ["--numa-nodes=0,1,2,3,4,5,6,7,8"] if name == "thirty-six" else ["--bind"]
    done = run("--dry-run", *lists, "--svg", str(file), "--root", str(root))
    assert done.returncode == 0, done.stderr
    assert "EngineCore" in done.stdout
    drawn = node_groups(ET.parse(file).getroot())
    gpus = [gpu["node"] for gpu in ROOTS[name]["gpus"]]
    wanted = list(range(9)) if name == "thirty-six" else gpus
    for worker, node in enumerate(wanted):
        for title, box in drawn.items():
            assert (f"worker {worker} (GPU {worker})" in texts(box)) == (title == f"node {node}")
    for gpu, node in enumerate(gpus):
        assert f"GPU {gpu}" in texts(drawn["no known node" if node < 0 else f"node {node}"])


def test_the_picture_in_the_readme_is_drawn_so(tmp_path: Path) -> None:
    gpus = [{"node": node} for node in (3, 2, 1, 0, 7, 6, 5, 4)]
    root = str(lay(tmp_path, {**ROOTS["eight"], "gpus": gpus}))
    assert run("--dry-run", "--svg", "-", "--root", root).stdout == (RECORDED / "plan.svg").read_text()


def cells_of(drawn: str) -> dict[str, list[str]]:
    """Return tip → fills of each CPU's square."""
    groups = [group for group in ET.fromstring(drawn).iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    tips = [(str(group.findtext(f"{SVG}title")), group) for group in groups]
    return {
        tip: [str(part.get("fill")) for part in group.iter(f"{SVG}rect") if part.get("fill") != "none"]
        for tip, group in tips
        if tip.startswith("CPU ")
    }


def test_each_cpu_is_drawn_once_and_white_where_it_is_not_allowed(tmp_path: Path) -> None:
    machine = read_machine(lay(tmp_path, ROOTS["two"]), environ={})
    cells = cells_of(picture(machine))
    assert sorted(cells) == sorted(f"CPU {cpu}" for cpu in range(16))
    assert {tip for tip, fills in cells.items() if fills == [FORBIDDEN]} == {f"CPU {cpu}" for cpu in range(4, 8)}


def test_a_cpu_has_the_colours_of_its_workers(tmp_path: Path) -> None:
    machine = read_machine(lay(tmp_path, TWO_NODES), environ={})
    lists = ["0-1", "1-2", *["8"] * 5]
    config = LaunchConfig(numa_bind_nodes=[0, 0, 1, 1, 1, 1, 1], numa_bind_cpus=lists, tensor_parallel_size=7)
    cells = cells_of(picture(machine, processes=plan(machine, config).processes))
    first, second = cells["CPU 0, worker 0"], cells["CPU 2, worker 1"]
    assert len({*first, *second, *cells["CPU 3"], FORBIDDEN, SHARED}) == 5
    assert cells["CPU 1, worker 0, worker 1"] == [SHARED]
    assert cells["CPU 8, 5 workers"] == [SHARED]


def test_names_cannot_break_a_picture(tmp_path: Path) -> None:
    name = '</title><script>&"\x00\x1b[31m\ud800'
    machine = read_machine(lay(tmp_path, FOUR_GPUS), environ={})
    gpus = tuple(gpu._replace(name=name, bdf=name) for gpu in machine.gpus)
    root = ET.fromstring(picture(dataclasses.replace(machine, gpus=gpus)).encode())
    assert not list(root.iter(f"{SVG}script"))


@pytest.mark.parametrize("args", [["topo"], ["--dry-run"]], ids=" ".join)
def test_a_picture_that_cannot_be_written_is_one_sentence(args: list[str], tmp_path: Path) -> None:
    root = ["--root", str(lay(tmp_path / "root", FOUR_GPUS))]
    for path in ("/nowhere/plan.svg", str(tmp_path), "/dev/full"):
        done = run(*args, *root, "--svg", path)
        assert (done.returncode, done.stdout) == ((2 if path == str(tmp_path) else 1), "")
        assert done.stderr.startswith("Error: ")
        assert "Traceback" not in done.stderr
    file = tmp_path / "plan.svg"
    file.write_text("old")
    assert run(*args, *root, "--json", "--svg", str(file)).stdout.startswith("{")
    assert file.read_text().startswith("<svg")
    assert run(*args, *root, "--svg", "-").stdout.startswith("<svg")
    piped = f"{shlex.join([*TOPO[:-1], *args, *root, '--svg', '-'])} | true"
    done = subprocess.run(["bash", "-c", piped], env=ENVIRON, capture_output=True, text=True)
    assert "Error" not in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    file.touch(mode=0o600)
    assert run("topo", "--root", str(lay(tmp_path / "root", FOUR_GPUS)), "--svg", str(file)).returncode == 0
    assert (file.stat().st_mode & 0o777, file.stat().st_size > 0) == (0o600, True)


@pytest.mark.parametrize("columns", ["0", "x", "1", "99999"])
def test_a_width_that_cannot_be_is_no_traceback(columns: str, tmp_path: Path) -> None:
    command = [*TOPO, "--root", str(lay(tmp_path, ROOTS["two"]))]
    status, text = in_terminal(command, 80, {**ENVIRON, "COLUMNS": columns})
    assert (status, b"node 0" in text, b"Traceback" in text) == (0, True, False) or columns == "1"
    assert b"Traceback" not in text


def test_a_run_draws_nothing() -> None:
    done = run("--svg", "plan.svg", "--", "true")
    assert done.returncode == 2
    assert "--dry-run" in done.stderr
