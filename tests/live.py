"""Run a command as if this host were a laid machine: its /sys and /proc in a mount namespace, its CPUs by a preload.

Example: ``run_on(root, "numa-launch", "topo", env={}, cpus="0-63", preload=library)``. Nothing of the command knows: it
reads /sys, /proc and its own affinity, and loads the vendor's library, a stub, where it would find the driver's.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from numa_launch.idsets import format_ids, parse_ids
from tests.lay import LIBRARY_KEYS, Description, address
from tests.stubs.build import SOURCES, compile_library, describe

AS_ROOT = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
MOUNT = 'ulimit -n 1024 && mount --bind "$0/sys" /sys && mount --bind "$0/proc" /proc && exec "$@"'
"""Few descriptors, as without /proc/self/fd what closes them tries each number that there may be."""

HOLDERS = ("compute", "mps", "graphics", "sliced")
"""What a described GPU may have of the processes that hold it (tests/stubs/description.h)."""


def can_unshare() -> bool:
    return (
        shutil.which("unshare") is not None and subprocess.run([*AS_ROOT, "true"], capture_output=True).returncode == 0
    )


needs_namespaces = pytest.mark.skipif(
    not can_unshare() or shutil.which("cc") is None, reason="no mount namespaces, or no C compiler"
)


def build_preload(directory: Path) -> Path:
    """Return the library to preload, built there."""
    return compile_library(directory, "affinity.so", (SOURCES / "affinity.c").read_text()) / "affinity.so"


def command_on(root: Path, *command: str) -> list[str]:
    """Return the command line that runs `command` where /sys and /proc are those below `root`."""
    return [*AS_ROOT, "sh", "-c", MOUNT, str(root), *command]


def run_on(
    root: Path, *command: str, env: Mapping[str, str], cpus: str, preload: Path
) -> "subprocess.CompletedProcess[str]":
    """Run the command on the machine below `root`, allowed these CPUs."""
    for name in ("sys", "proc"):
        (root / name).mkdir(exist_ok=True)
    environ = {**os.environ, **env, "FAKE_AFFINITY": cpus, "LD_PRELOAD": str(preload)}
    return subprocess.run(command_on(root, *command), env=environ, capture_output=True, text=True, timeout=120)


def allowed_cpus(machine: Description) -> str:
    """Return the CPUs that a process on the described machine may use."""
    every = frozenset[int]().union(*(parse_ids(node.get("cpus", "")) for node in machine["nodes"].values()))
    online = parse_ids(machine["online"]) if "online" in machine else every
    cpuset = parse_ids(machine["cpuset"]) if "cpuset" in machine else online
    return machine.get("allowed_cpus") or format_ids(cpuset)


def stub_of(machine: Description, vendor: str = "nvidia", **settings: Any) -> str:
    """Return what the vendor's driver says of the machine's GPUs: of those it is described to know, or else of all."""
    some = any(LIBRARY_KEYS & gpu.keys() for gpu in machine.get("gpus", []))
    own = [
        {
            "bdf": address(position, gpu),
            "uuid": gpu.get("uuid"),
            "name": gpu.get("name", "GPU"),
            "cpus": gpu.get("nvml_cpus"),
            "node": gpu.get("nvml_node"),
            "mig": gpu.get("mig", []),
            "fail": gpu.get("fail"),
            **{key: gpu.get(key) for key in HOLDERS},
            "serial": f"16531220{position:04d}",
        }
        for position, gpu in enumerate(machine.get("gpus", []))
        if gpu.get("vendor", "nvidia") == vendor and (not some or LIBRARY_KEYS & gpu.keys())
    ]
    return describe(own, **settings)
