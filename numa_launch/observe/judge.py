"""Whether a process runs where it should: one verdict from what the kernel shows of it. Pure functions.

Example: ``judge(Seen(cpus, threads), Should(nodes, cpus), allowed)`` is ``"local"`` where all is as it should be.
"""

from collections.abc import Mapping
from typing import NamedTuple

VERDICTS = {
    "local": "all its threads have the CPUs they should have",
    "narrowed": "it has fewer CPUs of its nodes than it should",
    "unbound": "it may run on all CPUs there are for it",
    "wrong-node": "it may run outside the nodes it should be on",
    "threads-escaped": "some of its threads may run on CPUs that its main thread may not",
    "memory-remote": "too much of its memory is on other nodes",
}
"""Verdict → what it says of a process. Where nothing says where it should be, its own CPUs do."""


class Seen(NamedTuple):
    """What the kernel shows of a process: its main thread's CPUs, and those of all its threads.

    `memory_kb` is node → resident memory in KiB that the process placed itself, None: not known.
    """

    cpus: frozenset[int]
    threads: tuple[frozenset[int], ...] = ()
    memory_kb: Mapping[int, int] | None = None


class Should(NamedTuple):
    """What a process should have: CPUs, all CPUs of its nodes (`of_nodes`), and nodes to take memory from."""

    cpus: frozenset[int]
    of_nodes: frozenset[int]
    memory_nodes: frozenset[int] = frozenset()


def judge(seen: Seen, should: Should | None, allowed: frozenset[int], remote_limit: float = 0.1) -> str:
    """Return the verdict, a key of VERDICTS.

    `should` is None where nothing says where the process should be. `allowed` are all CPUs it could have at most.
    `remote_limit` is the share of its memory (0 to 1) that may be elsewhere.
    """
    if should is not None and not seen.cpus <= should.of_nodes | should.cpus:
        everywhere = allowed <= seen.cpus and not seen.cpus.isdisjoint(should.of_nodes | should.cpus)
        return "unbound" if everywhere else "wrong-node"
    if any(not cpus <= seen.cpus for cpus in seen.threads):
        return "threads-escaped"
    if should is None:
        return "unbound" if allowed <= seen.cpus else "narrowed"
    if remote_share(seen.memory_kb, should.memory_nodes) > remote_limit:
        return "memory-remote"
    return "local" if should.cpus <= seen.cpus else "narrowed"


def remote_share(memory_kb: Mapping[int, int] | None, nodes: frozenset[int]) -> float:
    """Return the share (0 to 1) of the memory that is not on these nodes; 0 where either is not known."""
    total = sum((memory_kb or {}).values())
    if not total or not nodes:
        return 0.0
    assert memory_kb is not None
    return sum(size for node, size in memory_kb.items() if node not in nodes) / total
