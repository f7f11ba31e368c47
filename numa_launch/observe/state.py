"""What the kernel shows of a process now.

Example: ``log_current_affinity_state("worker 3")`` logs
``worker 3: policy prefer:1, CPUs 8-15, nodes 1 (whole)``.
"""

import contextlib

from numa_launch.idsets import format_ids, union
from numa_launch.log import LOGGER
from numa_launch.machine.limits import current_affinity, read_policy
from numa_launch.machine.nodes import read_nodes
from numa_launch.machine.read import read_online, require_linux


def affinity_state(label: str, pid: int = 0) -> str:
    """Return one line: the label, the memory policy, the CPUs allowed and whose nodes they are.

    It is the calling thread's, or with a PID that of a process's main thread.
    """
    policy, cpus = read_policy("", pid), current_affinity(pid)
    if cpus is None:
        return f"{label}: policy {policy or 'unknown'}, CPUs unknown, nodes unknown"
    online = read_online("")
    nodes = [node for node in read_nodes("", online) if not node.cpus.isdisjoint(cpus)]
    whole = union(node.cpus for node in nodes) <= cpus
    named = f"{format_ids(node.id for node in nodes)} ({'whole' if whole else 'in part'})" if nodes else "none"
    return f"{label}: policy {policy or 'unknown'}, CPUs {format_ids(cpus)}, nodes {named}"


def log_current_affinity_state(label: str) -> None:
    """Log the calling process's policy, CPUs and nodes as one line at INFO; never raises and never waits."""
    import logging

    # A line in a log must not end a worker, whatever is wrong with its host, its label or its log.
    with contextlib.suppress(Exception):
        try:
            require_linux()
            line = affinity_state(" ".join(str(label).split()))
        except Exception as error:
            line = f"state unknown, {type(error).__name__}: {error}"
        logging.getLogger(LOGGER).info("%s", line)
