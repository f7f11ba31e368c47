"""What the kernel shows of a process now, and whether that is what was asked for.

Example: ``log_current_affinity_state("worker 3")`` logs
``worker 3: policy prefer:1, CPUs 8-15, nodes 1 (whole), local: all its threads have the CPUs they should have``.
"""

import contextlib
import os
from typing import NamedTuple

from numa_launch.idsets import format_ids, union
from numa_launch.log import LOGGER
from numa_launch.machine.handover import VARIABLE, parse_handover
from numa_launch.machine.limits import current_affinity, read_cpuset, read_policy
from numa_launch.machine.nodes import read_nodes
from numa_launch.machine.read import read_online, require_linux
from numa_launch.observe.judge import VERDICTS, Seen, Should, judge


class BindingState(NamedTuple):
    """What is in force on the calling thread, beside what a launcher of ours asked for.

    `nodes` are those that have any of the `cpus`; `policy` is as numa_maps shows it (``default``, ``bind:1``), None:
    unknown. `asked_cpus` and `asked_policy` are None where no launcher of ours bound this process. `verdict` is
    ``local``, ``narrowed``, ``unbound``, ``wrong-node`` or ``threads-escaped``; it looks at all threads' CPUs, and at
    no memory.
    """

    nodes: tuple[int, ...]
    cpus: frozenset[int]
    policy: str | None
    asked_cpus: frozenset[int] | None
    asked_policy: str | None
    verdict: str


def current_binding() -> BindingState | None:
    """Return what the kernel has in force for the calling thread now, None where its CPUs cannot be read.

    It reads the process's own affinity and memory policy; only `asked_…` come from the launcher (NUMA_LAUNCH_BOUND).
    Raises PlatformError on other systems than Linux.
    """
    require_linux()
    cpus = current_affinity()
    if cpus is None:
        return None
    online = read_online("")
    nodes = read_nodes("", online)
    asked = parse_handover(os.environ.get(VARIABLE))
    should = None
    if asked:
        of_nodes = union(node.cpus for node in nodes if not node.cpus.isdisjoint(asked.cpus))
        should = Should(asked.cpus, of_nodes)
    cpuset = read_cpuset("", "cpus")
    allowed = online if cpuset is None else online & cpuset
    return BindingState(
        nodes=tuple(node.id for node in nodes if not node.cpus.isdisjoint(cpus)),
        cpus=cpus,
        policy=read_policy(""),
        asked_cpus=asked.cpus if asked else None,
        asked_policy=asked.policy if asked else None,
        verdict=judge(Seen(cpus, own_threads()), should, allowed),
    )


def own_threads() -> tuple[frozenset[int], ...]:
    """Return the CPUs of each thread of this process; those that end meanwhile are left out."""
    try:
        names = os.listdir("/proc/self/task")
    except OSError:
        return ()
    return tuple(cpus for name in names if (cpus := current_affinity(int(name))) is not None)


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


def verdict_text(state: BindingState) -> str:
    """Return the verdict in words, with what was asked for where that is something else."""
    asked = []
    if state.asked_cpus is not None and state.asked_cpus != state.cpus:
        asked.append(f"CPUs {format_ids(state.asked_cpus)}")
    if state.asked_policy is not None and state.asked_policy != state.policy:
        asked.append(f"policy {state.asked_policy}")
    but = f" (asked: {', '.join(asked)})" if asked else ""
    return f"{state.verdict}: {VERDICTS[state.verdict]}{but}"


def log_current_affinity_state(label: str) -> None:
    """Log the calling thread's policy, CPUs, nodes and verdict as one line at INFO; never raises and never waits.

    The verdict holds the process against what a launcher of ours asked for it.
    """
    import logging

    # A line in a log must not end a worker, whatever is wrong with its host, its label or its log.
    with contextlib.suppress(Exception):
        try:
            require_linux()
            line = affinity_state(" ".join(str(label).split()))
            state = current_binding()
            line += f", {verdict_text(state)}" if state else ""
        except Exception as error:
            line = f"state unknown, {type(error).__name__}: {error}"
        logging.getLogger(LOGGER).info("%s", line)
