"""``topo``: JSON to the letter, and a page for people."""

import json
from pathlib import Path
from typing import Any

import pytest

from numa_launch.cli import status_of
from tests.lay import Description, lay

MACHINE: Description = {
    "nodes": {"0": {"cpus": "0-3", "mem_mb": 1}, "8": {"cpus": "4-7", "mem_mb": 2}},
    "distances": {"0": {"0": 10, "8": 40}, "8": {"0": 40, "8": 10}},
    "siblings": "split",
    "l3": ["0-3", "4-7"],
    "packages": {"3": "0-7"},
    "cpuset": "1-7",
    "gpus": [{"node": 8, "uuid": "GPU-a"}, {"node": 0, "uuid": "GPU-b"}],
}


def topo(root: Path, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert status_of(["topo", "--root", str(root), *args]) == 0
    return capsys.readouterr().out


def test_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    got: dict[str, Any] = json.loads(topo(lay(tmp_path, MACHINE), capsys, "--json"))
    gpu = {"source": "pci-node", "vendor": "nvidia", "class": "0x030200"}
    assert got == {
        "schema": 1,
        "nodes": [
            {"id": 0, "cpus": "0-3", "usable_cpus": "1-3", "memory_kb": 1024, "distances": {"0": 10, "8": 40}},
            {"id": 8, "cpus": "4-7", "usable_cpus": "4-7", "memory_kb": 2048, "distances": {"0": 40, "8": 10}},
        ],
        "packages": [{"id": 3, "cpus": "0-7"}],
        "cores": ["0,4", "1,5", "2,6", "3,7"],
        "l3": ["0-3", "4-7"],
        "online_cpus": "0-7",
        "gpus": [
            {"index": None, "bdf": "0000:10:00.0", "uuid": "GPU-a", "node": 8, "visible": False, **gpu},
            {"index": 0, "bdf": "0000:20:00.0", "uuid": "GPU-b", "node": 0, "visible": True, **gpu},
        ],
    }


def test_a_page_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    out = topo(lay(tmp_path, MACHINE), capsys)
    assert out.startswith("2 nodes, 1 package, 4 cores, 8 CPUs, 2 GPUs\n")
    for text in ("usable CPUs", "0000:20:00.0", "pci-node", "distance", "hidden"):
        assert text in out


def test_names_are_text_not_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpus = [{"node": 0, "name": "[/x] :smile: [red]y"}]
    assert "[/x] :smile: [red]y" in topo(lay(tmp_path, {**MACHINE, "gpus": gpus}), capsys)


def test_the_live_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["topo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"]


@pytest.mark.parametrize("args", [["--root", "/nowhere"], ["--tp", "2"], ["extra"]])
def test_bad_input(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["topo", *args]) == 2
    assert capsys.readouterr().err.startswith("Error: ")


def test_options_of_a_launch_are_none_of_topo(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["--tp", "2", "topo"]) == 2
    assert "--tp is no option of topo" in capsys.readouterr().err
    assert status_of(["topo", "--", "true"]) == 2
    assert "takes no COMMAND" in capsys.readouterr().err
