"""The case files: small machines with the right answers, through the command line's own functions.

A case's ``expect`` may hold exit, stderr, mode, bound, skip_reason, processes (each must match a printed one on the
keys given; ``reasons`` are among its codes, ``reasons_are`` exactly those), count, gpu_nodes, warnings, warnings_are.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from numa_launch.cli import status_of
from tests.lay import lay


def cases(*groups: str) -> list[ParameterSet]:
    """Return the cases of these files, of all without any."""
    return [
        pytest.param(case, id=f"{file.stem}: {case['name']}")
        for file in sorted((Path(__file__).parents[1] / "cases").glob("*.json"))
        for case in (json.loads(file.read_text()) if not groups or file.stem in groups else [])
    ]


IDENTITY = ("kind", "local_rank", "dp_local_rank")


@pytest.mark.parametrize("case", cases())
def test_case(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in case["env"].items():
        monkeypatch.setenv(name, value)
    root = lay(tmp_path / "root", case["machine"])
    status = status_of(["--dry-run", "--json", "--root", str(root), *case["args"], "--", "true"])
    check_case(case["expect"], status, *capsys.readouterr())


def check_case(expect: dict[str, Any], status: int, out: str, err: str) -> None:
    """Check what ``--dry-run --json`` ended with and printed."""
    assert status == expect["exit"], err
    if status:
        assert err.startswith("Error: ")
        assert all(text in err for text in expect.get("stderr", []))
    else:
        check_plan(json.loads(out), expect)


def codes(notes: list[dict[str, str]]) -> list[str]:
    return [note["code"] for note in notes]


def check_plan(plan: dict[str, Any], expect: dict[str, Any]) -> None:
    plan["skip_reason"] = (plan["skip_reason"] or {}).get("code")
    for key in ("mode", "bound", "skip_reason"):
        assert plan[key] == expect.get(key, plan[key])
    assert len(plan["processes"]) == expect.get("count", len(plan["processes"]))
    nodes = [gpu["node"] for gpu in plan["gpus"]]
    assert nodes == expect.get("gpu_nodes", nodes)
    assert set(expect.get("warnings", [])) <= set(codes(plan["warnings"]))
    assert codes(plan["warnings"]) == expect.get("warnings_are", codes(plan["warnings"]))
    for wanted in expect.get("processes", []):
        check_process(plan["processes"], wanted)


def check_process(processes: list[dict[str, Any]], wanted: dict[str, Any]) -> None:
    identity = {key: wanted[key] for key in IDENTITY if key in wanted}
    process = next(p for p in processes if identity.items() <= p.items())
    own = codes(process["reasons"])
    assert set(wanted.get("reasons", [])) <= set(own)
    assert own == wanted.get("reasons_are", own)
    for key in wanted.keys() - {"reasons", "reasons_are"}:
        assert process[key] == wanted[key], key
