"""Runs inside a guest with a real Slurm: has srun start tasks, and prints what the kernel shows of each as JSON lines.

Example: ``python -m tests.vm.slurm_probe inside part``. Nothing is judged here: the host compares.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numa_launch import ConfigError, LaunchConfig, read_machine, srun_options
from tests.vm.slurm import slurm

STATE = """\
echo "task $SLURM_PROCID $(sed -n 's/^Cpus_allowed_list:\\t//p' /proc/self/status) \
$(sed -n '1s/^[^ ]* \\([^ ]*\\).*/\\1/p' /proc/self/numa_maps)"
"""
METHODS = ("auto", "rank_ldom", "map_ldom", "mask_ldom", "map_cpu", "mask_cpu")
STRAIGHT = list(range(8))
PERMUTED = [3, 2, 1, 0, 7, 6, 5, 4]
ALLOCATE = ["salloc", "-N1", "--exclusive", "--immediate=30"]


def ran(command: list[str], script: str = STATE) -> dict[str, Any]:
    """Return the tasks' lines in the order of their ranks, with the exit status and what was said."""
    done = subprocess.run([*command, "sh", "-c", script], capture_output=True, text=True, timeout=90)
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("task ")]
    tasks = [line[2:] for line in sorted(words, key=lambda line: int(line[1]))]
    return {"command": command, "status": done.returncode, "tasks": tasks, "said": done.stderr}


def line(nodes: list[int], method: str, environ: dict[str, str], **fields: Any) -> list[str]:
    config = LaunchConfig(numa_bind_nodes=nodes, **fields)
    added = srun_options(read_machine(), config, len(nodes), method, environ=environ)
    return ["srun", f"--ntasks-per-node={len(nodes)}", f"--ntasks={len(nodes)}", *added]


def inside() -> dict[str, Any]:
    """Every method in an allocation of the whole host, in two maps, one of them with more ranks than nodes."""
    maps = {"straight": STRAIGHT, "permuted": PERMUTED}
    found = {
        f"{name} {method}": ran([*ALLOCATE, *line(nodes, method, {"SLURM_JOB_ID": "1"})])
        for name, nodes in maps.items()
        for method in (METHODS if name == "permuted" else ("auto",))
    }
    found["more ranks"] = ran([*ALLOCATE, *line([0, 0, 0, 1, 7, 6, 5, 4, 3, 2], "auto", {"SLURM_JOB_ID": "1"})])
    found["memory"] = ran([*ALLOCATE, *line(PERMUTED, "auto", {"SLURM_JOB_ID": "1"}, memory_policy="membind")])
    return found


def outside() -> dict[str, Any]:
    """A step of its own: as we make it, as Slurm refuses it, and our refusal before it."""
    refused = ""
    try:
        srun_options(read_machine(), LaunchConfig(numa_bind_nodes=STRAIGHT), 8, True, given=["-c1"], environ={})
    except ConfigError as error:
        refused = str(error)
    return {
        "ours": ran(line(STRAIGHT, "auto", {})),
        "slurm": ran(["srun", "-n8", "--exclusive", "--cpu-bind=verbose,rank_ldom"]),
        "refused": refused,
    }


def tasks() -> dict[str, Any]:
    """``numa-launch -- COMMAND`` as a task of srun's, and ``numa-launch srun`` as a program."""
    launch = [sys.executable, "-m", "numa_launch"]
    return {
        "explicit": ran(["srun", "-n4", "-c4", "--cpu-bind=none", *launch, "--numa-nodes=3,2,1,0", "--"]),
        "pmi": ran(["srun", "-n1", "-c16", "--mpi=pmi2", *launch, "--numa-nodes=3", "--"]),
        "narrowed": ran(["srun", "-n4", "-c2", *launch, "--"]),
        "program": ran([*ALLOCATE, *launch, "srun", "--ntasks-per-node=8", "--numa-nodes=3,2,1,0,7,6,5,4", "--"]),
    }


def part() -> dict[str, Any]:
    """In an allocation of four CPUs whose cpuset shows them: an sbatch script that calls us."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        script, out, done = (Path(directory) / name for name in ("script", "out", "done"))
        launch = f"{sys.executable} -m numa_launch srun --ntasks-per-node=2 --numa-nodes=0,1"
        script.write_text(
            f"#!/bin/sh\n{launch} --cpu-bind=rank_ldom -- true\n"
            f"{launch} -- grep Cpus_allowed_list /proc/self/status\ntouch {done}\n"
        )
        subprocess.run(
            ["sbatch", "-n2", "-c2", "-o", str(out), "-D", os.getcwd(), str(script)], check=True, capture_output=True
        )
        gives_up_at = time.monotonic() + 90
        while not done.exists() and time.monotonic() < gives_up_at:
            time.sleep(0.2)
        return {"printed": out.read_text() if out.exists() else "", "done": done.exists()}


SCENARIOS: dict[str, tuple[Callable[[], dict[str, Any]], bool]] = {
    "inside": (inside, False),
    "outside": (outside, False),
    "tasks": (tasks, False),
    "part": (part, True),
}


def main() -> None:
    for constrain in (False, True):
        names = [name for name in sys.argv[1:] if SCENARIOS[name][1] is constrain]
        if names:
            with slurm(Path(tempfile.mkdtemp(dir="/run")), constrain=constrain):
                for name in names:
                    report(name)


def report(name: str) -> None:
    began = time.monotonic()
    try:
        result = SCENARIOS[name][0]()
    except Exception:
        result = {"traceback": traceback.format_exc()}
    print(json.dumps({"scenario": name, "seconds": round(time.monotonic() - began, 1), "result": result}), flush=True)


if __name__ == "__main__":
    main()
