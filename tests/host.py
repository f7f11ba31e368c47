"""What this host lets tests do: its CPUs, their nodes, and whether numactl may bind here at all.

Example: ``@needs_numactl`` leaves a test out where numactl is missing or, as in a default container, refused.
"""

import os
import subprocess

import pytest

from numa_launch.apply.builtin import set_mempolicy
from numa_launch.doctor.tries import error_in_child
from numa_launch.idsets import format_ids
from numa_launch.machine.nodes import read_nodes
from numa_launch.machine.read import read_online

ALLOWED = sorted(os.sched_getaffinity(0))
CPU_A, CPU_B = ALLOWED[0], ALLOWED[-1]


def node_of(cpu: int) -> int:
    return next(node.id for node in read_nodes("", read_online("")) if cpu in node.cpus)


def may_bind() -> bool:
    """Return whether numactl is there and may set CPUs and memory policy."""
    command = ["numactl", f"--physcpubind={CPU_B}", f"--membind={node_of(CPU_B)}", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def may_set_memory_policy() -> bool:
    """Return whether this process may set a memory policy, by whatever means."""
    return error_in_child(lambda: set_mempolicy("preferred", [node_of(CPU_B)])) == 0


BOUND_TO_A = f"bind:{node_of(CPU_A)}"
BOUND_TO_B = f"bind:{node_of(CPU_B)}"
ALL_ALLOWED = format_ids(ALLOWED)

needs_memory_policy = pytest.mark.skipif(not may_set_memory_policy(), reason="memory policies are refused here")
needs_numactl = pytest.mark.skipif(not may_bind(), reason="numactl is missing, or may not bind here")
