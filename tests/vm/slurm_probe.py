"""Runs inside a guest with a real Slurm: has srun start tasks, and prints what the kernel shows of each as JSON lines.

Example: ``python -m tests.vm.slurm_probe inside part``. Nothing is judged here: the host compares.
"""

import functools
import json
import os
import select
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from numa_launch import ConfigError, LaunchConfig, read_machine, srun_options
from tests.vm.slurm import slurm

STATE = """\
echo "task $SLURM_PROCID $(sed -n 's/^Cpus_allowed_list:\\t//p' /proc/self/status) \
$(sed -n '1s/^[^ ]* \\([^ ]*\\).*/\\1/p' /proc/self/numa_maps)"
"""
METHODS = ("auto", "rank_ldom", "map_ldom", "mask_ldom", "map_cpu", "mask_cpu")
STRAIGHT = list(range(8))
MORE_RANKS = [0, 0, 0, 1, 7, 6, 5, 4, 3, 2]
GPUS = 8
LAUNCH = [sys.executable, "-m", "numa_launch"]
LIMIT_S = 90

machine = functools.cache(read_machine)


def ran(command: list[str]) -> dict[str, Any]:
    """Return the tasks' lines in the order of their ranks, with the exit status and what was said."""
    done = subprocess.run([*command, "sh", "-c", STATE], capture_output=True, text=True, timeout=LIMIT_S)
    return {"command": command, "status": done.returncode, "tasks": tasks_of(done.stdout), "said": done.stderr}


def tasks_of(printed: str) -> list[list[str]]:
    """Return the CPUs and the policy of each task by rank, as STATE printed them."""
    words = [line.split() for line in printed.splitlines() if line.startswith("task ")]
    return [line[2:] for line in sorted(words, key=lambda line: int(line[1]))]


def bound(method: str, nodes: list[int] | None = None, given: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    """Return what tasks got under a line with our options: on these nodes, or on those of the host's GPUs."""
    ranks = len(nodes) if nodes else GPUS
    added = srun_options(machine(), LaunchConfig(numa_bind_nodes=nodes, **fields), ranks, method, given=given)
    return ran(["srun", *given, f"--ntasks-per-node={ranks}", f"--ntasks={ranks}", *added])


def refused(*args: Any, **fields: Any) -> str:
    """Return why there is no line."""
    try:
        bound(*args, **fields)
    except ConfigError as error:
        return str(error)
    return ""


def inside() -> dict[str, Any]:
    """In an allocation of the whole host: every method, more ranks than nodes, memory, a step that is exclusive."""
    found = {method: bound(method) for method in METHODS}
    found["straight"] = bound("auto", STRAIGHT)
    found["more ranks"] = bound("auto", MORE_RANKS)
    for policy in ("membind", "preferred"):
        found[policy] = bound("auto", memory_policy=policy)
    found["exclusive"] = bound("auto", given=("--exclusive",))
    found["program"] = ran([*LAUNCH, "srun", f"--ntasks-per-node={GPUS}", "--"])
    return {"lines": found, "refused": refused("auto", MORE_RANKS, ("--exclusive",))}


def outside() -> dict[str, Any]:
    """A step that is a job of its own: as we make it, as Slurm refuses it, and our refusals before it."""
    return {
        "ours": bound("auto"),
        "straight": bound("auto", STRAIGHT),
        "slurm": ran(["srun", "-n8", "--exclusive", "--cpu-bind=rank_ldom"]),
        "slurm's masks": ran(["srun", "-n2", "-c2", "--cpu-bind=mask_cpu:0xc0,0x30"]),
        "too few": refused("auto", given=("-c1",)),
        "does not divide": refused("auto", MORE_RANKS),
    }


def tasks() -> dict[str, Any]:
    """``numa-launch -- COMMAND`` as a task of srun's: with all CPUs or few, without options or explicitly."""
    four = ["srun", "-n4", f"--gres=gpu:{GPUS}"]
    return {
        "auto": ran([*four, "-c4", "--cpu-bind=none", *LAUNCH, "--"]),
        "explicit": ran([*four, "-c4", "--cpu-bind=none", *LAUNCH, "--bind", "--"]),
        "own GPU": ran(["srun", "-n4", "-c4", "--gpus-per-task=1", "--cpu-bind=none", *LAUNCH, "--"]),
        "narrowed": ran([*four, "-c2", *LAUNCH, "--"]),
        "pmi": ran(["srun", "-n1", "-c16", "--mpi=pmi2", *LAUNCH, "--numa-nodes=3", "--"]),
    }


def batch(script: str, *options: str, under: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what an sbatch script printed, once it has come to its end; it is submitted from `under`."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        file, out, end = (Path(directory) / name for name in ("script", "out", "end"))
        os.mkfifo(end)
        fd = os.open(end, os.O_RDONLY | os.O_NONBLOCK)
        file.write_text(f"#!/bin/sh\n{script}\necho $? >{end}\n")
        submit = [*under, "sbatch", *options, "-o", str(out), "-D", os.getcwd(), str(file)]
        subprocess.run(submit, check=True, capture_output=True, timeout=LIMIT_S)
        ended = bool(select.select([fd], [], [], LIMIT_S)[0])
        status = os.read(fd, 100).decode().strip() if ended else "no end"
        os.close(fd)
        printed = out.read_text() if out.exists() else ""
    return {"status": status, "printed": printed, "tasks": tasks_of(printed)}


def part() -> dict[str, Any]:
    """In an allocation of three CPUs that its cpuset shows, so that one node is whole and one is not."""
    launch = f"{' '.join(LAUNCH)} srun --ntasks-per-node=2 --numa-nodes=0,1"
    return batch(
        f"grep Cpus_allowed_list /proc/self/status\n{launch} --cpu-bind=rank_ldom -- true\n"
        f"{launch} -- sh -c {shlex.quote(STATE)}",
        "-n3",
    )


def sbatch() -> dict[str, Any]:
    """README's script on one host, submitted from a step whose variables it therefore has."""
    return batch(
        f"#SBATCH --nodes=1\n#SBATCH --exclusive\n#SBATCH --gres=gpu:{GPUS}\n"
        "env | grep -E '^SLURM_|^ROCR_'\n"
        f"{' '.join(LAUNCH)} srun --ntasks-per-node {GPUS} -- sh -c {shlex.quote(STATE)}",
        under=("srun", "-n1", "-c2", "--cpu-bind=map_cpu:0"),
    )


class Scenario(NamedTuple):
    """What to do; within an allocation of the whole host, or in a Slurm that confines tasks to a cpuset."""

    run: Callable[[], dict[str, Any]]
    allocated: bool = False
    constrain: bool = False


SCENARIOS = {
    "outside": Scenario(outside),
    "inside": Scenario(inside, allocated=True),
    "tasks": Scenario(tasks),
    "part": Scenario(part, constrain=True),
    "sbatch": Scenario(sbatch, constrain=True),
}


def main() -> None:
    names = sys.argv[1:]
    if "SLURM_JOB_ID" in os.environ:
        for name in names:
            report(name)
        return
    for constrain in (False, True):
        chosen = [name for name in names if SCENARIOS[name].constrain is constrain]
        if chosen:
            with slurm(Path(tempfile.mkdtemp(dir="/run")), GPUS, constrain=constrain):
                for name in chosen:
                    if SCENARIOS[name].allocated:
                        again = [sys.executable, "-m", "tests.vm.slurm_probe", name]
                        subprocess.run(["salloc", "-N1", "--exclusive", "--immediate=60", *again], check=True)
                    else:
                        report(name)


def report(name: str) -> None:
    began = time.monotonic()
    try:
        result = SCENARIOS[name].run()
    except Exception:
        result = {"traceback": traceback.format_exc()}
    print(json.dumps({"scenario": name, "seconds": round(time.monotonic() - began, 1), "result": result}), flush=True)


if __name__ == "__main__":
    main()
