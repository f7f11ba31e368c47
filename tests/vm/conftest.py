"""Boots each guest once, when its first test asks, and keeps what its scenarios printed.

Example: ``scenario("eight", "auto")`` is the result of that scenario in the guest with eight nodes.
"""

import compileall
import functools
import json
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.stubs.build import AMDSMI, build_amdsmi, build_nvml

ROOT = Path(__file__).parents[2]
NUMA_VM = ROOT / "scripts/numa-vm"
NUMA_VM_MODULE: dict[str, Any] = runpy.run_path(str(NUMA_VM))
STUBS = ROOT / ".cache/stubs"
NEW_NUMACTL = ROOT / ".cache/numactl-new/bin/numactl"


class Guest(NamedTuple):
    """A machine for numa-vm, the scenarios to run in one boot of it, its time limit in seconds, and what runs them."""

    machine: str
    scenarios: tuple[str, ...]
    time_limit_s: int
    probe: str = "tests.vm.probe"


GUESTS = {
    # Eight nodes, eight GPUs whose order is not the nodes'.
    "eight": Guest(
        "".join(f"--node cpus={2 * i}-{2 * i + 1},mem=256M " for i in range(8))
        + "--distance 0,1,12 --distance 0,4,32 "
        + " ".join(f"--gpu {node}" for node in (3, 2, 1, 0, 7, 6, 5, 4)),
        ("auto", "builtin", "threads", "copies", "accepted", "capture"),
        1200,
    ),
    # Two packages with SMT, four GPUs; every kind of limit.
    "two": Guest(
        "--node cpus=0-3,mem=512M --node cpus=4-7,mem=512M --smp sockets=2,cores=2,threads=2 "
        "--gpu 0 --gpu 1 --gpu 1 --gpu 0",
        (
            *("auto", "explicit", "lists", "shards", "interleave", "off"),
            *("taskset-auto", "taskset-explicit", "taskset-elsewhere", "policy-set"),
            *(
                "cpuset-part",
                "cpuset-part-explicit",
                "cpuset-one-node",
                "cpuset-one-node-explicit",
                "cpuset-fewer-mems",
            ),
            *("seccomp", "seccomp-auto", "seccomp-new", "seccomp-strict", "seccomp-builtin"),
            *("noexec", "numactl-missing", "numactl-missing-explicit", "builtin-explicit", "killed", "accepted"),
            *("offline-one", "offline-node", "capture-cpuset", "doctor-limits", "pool"),
        ),
        1500,
    ),
    # Node 2 has no memory, node 3 no CPUs; a GPU on each.
    "odd": Guest(
        "--node cpus=0-1,mem=512M --node cpus=2-3,mem=512M --node cpus=4-5 --node mem=256M "
        "--distance 3,2,15 --distance 3,1,25 --gpu 0 --gpu 1 --gpu 2 --gpu 3",
        ("auto", "explicit", "builtin-explicit", "accepted", "capture", "doctor"),
        900,
    ),
    "one": Guest("--node cpus=0-1,mem=768M --gpu 0", ("doctor",), 300),
    # The firmware says nothing of the GPUs' nodes.
    "unknown": Guest(
        "--node cpus=0-1,mem=512M --node cpus=2-3,mem=512M --gpu -1 --gpu -1",
        ("auto", "explicit", "nodes", "spread", "amd-driver", "nvidia-driver", "capture"),
        900,
    ),
}

LAUNCHER_GUESTS = {
    "slurm": Guest(
        GUESTS["eight"].machine, ("outside", "inside", "tasks", "part", "sbatch"), 600, "tests.vm.slurm_probe"
    ),
}
"""Guests with other people's launchers: what the tests over all of GUESTS look at is not asked of them."""

TIMES: dict[str, float] = {}


def missing() -> str | None:
    """Return why no guest can be run here, as numa-vm says it; None where one can."""
    try:
        NUMA_VM_MODULE["find_kernel"]()
    except NUMA_VM_MODULE["CannotRun"] as reason:
        return f"guests are left out: {reason}"
    return None


def skipped_scenarios() -> dict[str, str]:
    """Return the scenarios that lack something here, and what."""
    lacking = (
        {} if NEW_NUMACTL.exists() else {"seccomp-new": "numactl 2.0.19 could not be fetched (scripts/new-numactl)"}
    )
    if not shutil.which("cc"):
        lacking |= dict.fromkeys(("amd-driver", "nvidia-driver"), "no C compiler")
    if sys.version_info < (3, 11):
        lacking["pool"] = "max_tasks_per_child came with Python 3.11"
    if not AMDSMI.exists():
        lacking["amd-driver"] = "no amdsmi"
    return lacking


@functools.cache
def lines_of(guest: str) -> dict[str, dict[str, Any]]:
    """Boot a guest, run its scenarios, and return what each printed."""
    spec = {**GUESTS, **LAUNCHER_GUESTS}[guest]
    # Compiled here once, as a guest would compile at every start.
    for package in ("numa_launch", "tests"):
        compileall.compile_dir(str(ROOT / package), quiet=2)
    if shutil.which("cc"):
        build_nvml(STUBS / "nvml")
    if shutil.which("cc") and AMDSMI.exists():
        build_amdsmi(STUBS / "amdsmi")
    scenarios = [name for name in spec.scenarios if name not in skipped_scenarios()]
    command = [str(NUMA_VM), *spec.machine.split(), "--timeout", str(spec.time_limit_s), "--"]
    command += [sys.executable, "-m", spec.probe, *scenarios]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=spec.time_limit_s + 60)
    TIMES[guest] = time.monotonic() - began
    assert done.returncode == 0, (
        f"guest {guest} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    TIMES.update({f"{guest}: {line['scenario']}": line["seconds"] for line in lines})
    return {line["scenario"]: line["result"] for line in lines}


def scenario(guest: str, name: str) -> dict[str, Any]:
    """Return the result of one scenario; a scenario that broke fails the test that asks for it."""
    if reason := missing():
        pytest.skip(reason)
    if name in skipped_scenarios():
        pytest.skip(skipped_scenarios()[name])
    result = lines_of(guest)[name]
    assert "traceback" not in result, result["traceback"]
    return result
