"""``numa-launch srun``: the line, in text and JSON, whose options are whose, and what becomes of faults."""

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numa_launch.cli import status_of
from tests.cli.test_run import NUMA_LAUNCH, error_of, run
from tests.launchers.test_srun_line import ANOTHERS_STEP, EIGHT, INSIDE, PERMUTED
from tests.lay import Description, lay

Line = Callable[..., dict[str, Any]]


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    """Return a function that plans srun for a described machine and returns the JSON, or the error."""

    def srun(machine: Description, *args: str, environ: dict[str, str] = INSIDE) -> dict[str, Any]:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        root = str(lay(tmp_path / "root", machine))
        status = status_of(["srun", "--dry-run", "--json", "--root", root, *args, "--", "python", "a b.py"])
        printed = capsys.readouterr()
        if status:
            assert printed.err.startswith("Error: ")
            return {"status": status, "error": printed.err}
        return dict(json.loads(printed.out))

    return srun


def test_the_json_has_the_plan_and_the_line(line: Line) -> None:
    made = line(EIGHT, "--ntasks-per-node", "8")
    assert made["srun"] == [
        *("srun", "--ntasks-per-node=8", "--ntasks=16", "--cpu-bind=verbose,rank_ldom", "--whole"),
        *("python", "a b.py"),
    ]
    assert made["command"] == ["python", "a b.py"]
    assert [(p["kind"], p["local_rank"], p["nodes"]) for p in made["processes"]] == [
        ("worker", i, [i]) for i in range(8)
    ]
    assert made["warnings"] == []
    assert made["launched"] is None


def test_ours_may_stand_anywhere_among_theirs(line: Line) -> None:
    theirs = ["-p", "gpu", "--gres=gpu:8", "-vvv", "--nodes", "2", "-n16", "--mem=0", "--comment", "x y"]
    ours = ["--ntasks-per-node", "8", "--cpu-bind=mask_cpu", "--numa-nodes", "0,1,2,3,4,5,6,7", "--bind"]
    mixed = [*theirs[:2], *ours[:2], *theirs[2:4], ours[2], *theirs[4:6], *ours[3:], *theirs[6:]]
    made = line(EIGHT, *mixed)["srun"]
    assert made[4:-2] == theirs
    assert made[1:4] == ["--ntasks-per-node=8", f"--cpu-bind=verbose,mask_cpu:{masks(range(8))}", "--whole"]


def masks(nodes: Any) -> str:
    return ",".join(hex(3 << 2 * node) for node in nodes)


def test_rank_variables_and_sizes_play_no_part(line: Line) -> None:
    environ = {**INSIDE, **ANOTHERS_STEP, "LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "PMI_RANK": "3"}
    made = line(PERMUTED, "--ntasks-per-node=8", "--tp=2", "--dp-rank=1", "--bind", environ=environ)
    assert f"--cpu-bind=verbose,mask_cpu:{masks((3, 2, 1, 0, 7, 6, 5, 4))}" in made["srun"]
    assert made["warnings"] == []


def test_a_map_that_rank_ldom_misses_is_warned_of(line: Line) -> None:
    made = line(PERMUTED, "--ntasks-per-node=8", "--cpu-bind=rank_ldom")
    assert [warned["code"] for warned in made["warnings"]] == ["rank-ldom-mismatch"]


def test_what_stays_unbound_warns_and_adds_nothing(line: Line) -> None:
    made = line({"nodes": EIGHT["nodes"]}, "--ntasks-per-node=8")
    assert made["srun"] == ["srun", "--ntasks-per-node=8", "--ntasks=16", "python", "a b.py"]
    assert made["skip_reason"]["code"] == "no-gpu"
    assert [warned["code"] for warned in made["warnings"]] == ["no-gpu"]


def test_ranks_can_be_spread_without_gpus(line: Line) -> None:
    made = line({"nodes": EIGHT["nodes"]}, "--ntasks-per-node=2", "--map=rank", "--cpu-bind=mask_ldom")
    assert "--cpu-bind=verbose,mask_ldom:0xf,0xf0" in made["srun"]


def test_none_needs_no_number_and_no_plan(line: Line) -> None:
    assert line(EIGHT, "--cpu-bind=none", "-n4")["srun"] == ["srun", "--cpu-bind=none", "-n4", "python", "a b.py"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--ntasks-per-node N is missing"),
        (["--ntasks-per-node=0"], "0 is not in the range"),
        (["--ntasks-per-node=8", "--cpu-bind=cores"], "'cores' is not one of"),
        (["--ntasks-per-node=8", "--nproc=8"], "--nproc does not go with srun"),
        (["--ntasks-per-node=8", "--rank=0"], "--rank does not go with srun"),
        (["--ntasks-per-node=8", "--kind=worker"], "--kind does not go with srun"),
        (["--ntasks-per-node=8", "--grace=3"], "--grace does not go with srun"),
        (["--ntasks-per-node=8", "--report"], "--report does not go with srun"),
        (["--ntasks-per-node=8", "--numa-nodes=99"], "node 99 does not exist"),
        (["--ntasks-per-node=9", "--bind"], "entry 8"),
    ],
)
def test_misuse_is_one_sentence(line: Line, args: list[str], said: str) -> None:
    refused = line(EIGHT, *args)
    assert refused["status"] == 2
    assert said in refused["error"]


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["--cpu_bind=cores"], "--cpu_bind is to be written --cpu-bind"),
        (["--cpu_=cores"], "--cpu_ is to be written --cpu-bind"),
        (["--cpu-b", "cores"], "--cpu-b is to be written --cpu-bind"),
        (["--cpu_bin=none", "--cpu-bind=none"], "--cpu_bin is to be written --cpu-bind"),
        (["--tasks-per-node=4"], "--tasks-per-node is to be written --ntasks-per-node"),
        (["--ntasks-per-n", "4"], "--ntasks-per-n is to be written --ntasks-per-node"),
    ],
)
def test_ours_in_spellings_of_srun_alone_would_win_over_ours(line: Line, words: list[str], written: str) -> None:
    for args in (["--ntasks-per-node=8", *words], words):
        refused = line(EIGHT, *args)
        assert refused["status"] == 2
        assert written in refused["error"]


def test_without_a_binding_any_spelling_of_the_number_is_sruns(line: Line) -> None:
    made = line(EIGHT, "--cpu-bind=none", "--tasks-per-node=4")
    assert made["srun"] == ["srun", "--cpu-bind=none", "--tasks-per-node=4", "python", "a b.py"]


def test_strict_fails_where_a_rank_may_use_no_cpu(line: Line) -> None:
    refused = line({**EIGHT, "cpuset": "0-7"}, "--ntasks-per-node=8", "--strict")
    assert refused["status"] == 1


def test_a_dry_run_prints_the_line_alone(tmp_path: Path) -> None:
    root = str(lay(tmp_path, PERMUTED))
    args = ["srun", "--ntasks-per-node=8", "--cpu-bind=rank_ldom", "--dry-run", "--root", root]
    done = run(*args, "--", "python", "a b.py", env=INSIDE)
    assert done.stdout == (
        "srun --ntasks-per-node=8 --ntasks=16 --cpu-bind=verbose,rank_ldom --whole python 'a b.py'\n"
    )
    assert done.stderr.startswith("numa-launch: srun's rank_ldom binds the ranks to nodes 0 1 2")


FAKE_SRUN = """#!/bin/sh
printf '%s\\n' "$$" "$@" "$SLURM_STEP_ID"
exit 37
"""


def test_it_becomes_srun_in_the_callers_environment(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text(FAKE_SRUN)
    (tmp_path / "srun").chmod(0o755)
    environ = {**os.environ, **INSIDE, **ANOTHERS_STEP, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [NUMA_LAUNCH, "srun", "--cpu-bind", "none", "-N", "1", "--", "true", "--", "-x"]
    started = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    printed = started.communicate(timeout=60)[0].splitlines()
    assert printed == [str(started.pid), *shlex.split("--cpu-bind=none -N 1 true -- -x 3")]
    assert started.returncode == 37


def test_srun_missing(tmp_path: Path) -> None:
    assert "srun: command not found" in error_of(
        run("srun", "--cpu-bind=none", "--", "true", env={"PATH": str(tmp_path)}), 127
    )


def test_outside_an_allocation_it_says_whose_plan_it_is() -> None:
    done = run("srun", "--ntasks-per-node=1", "--numa-cpus=0", "--dry-run", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "may differ from the hosts that the tasks run on" in done.stderr
    inside = run("srun", "--ntasks-per-node=1", "--numa-cpus=0", "--dry-run", "--", "true", env={"SLURM_JOB_ID": "7"})
    assert "may differ" not in inside.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--ntasks-per-node=1"], "COMMAND is missing"),
        (["--ntasks-per-node=1", "--json", "--", "true"], "--json goes with --dry-run"),
        (["--ntasks-per-node=1", "--root=/x", "--", "true"], "--root plans for a captured machine"),
    ],
)
def test_what_only_a_dry_run_takes(args: list[str], said: str) -> None:
    assert said in error_of(run("srun", *args), 2)
