"""The threads of any process: the CPUs each may run on, and the CPU it last ran on.

Example: ``read_threads(4711)[0]`` is ``ThreadState(4711, frozenset({8, 9}), 8)``, the main thread.
Nothing is stopped or traced: one file of /proc and one sched_getaffinity(2) each. Source: proc(5).
"""

import os
from typing import NamedTuple

from numa_launch.machine.limits import current_affinity

LAST_CPU = 39
"""The field ``processor`` of /proc/PID/stat, counted as proc(5) does."""


class ThreadState(NamedTuple):
    """A thread: the CPUs it may run on, and the CPU it last ran on (None: unknown)."""

    tid: int
    cpus: frozenset[int]
    last_cpu: int | None


def read_threads(pid: int) -> tuple[ThreadState, ...]:
    """Return the threads of a process, the main one first; those that end meanwhile are left out.

    Equal sets of CPUs are one object, as there may be many threads. Raises OSError where the process has ended.
    """
    seen: dict[frozenset[int], frozenset[int]] = {}
    threads = []
    for tid in sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda tid: (tid != pid, tid)):
        cpus = current_affinity(tid)
        stat = read_stat(pid, tid)
        if cpus is not None and stat is not None:
            threads.append(ThreadState(tid, seen.setdefault(cpus, cpus), last_cpu_of(stat)))
    return tuple(threads)


def read_stat(pid: int, tid: int) -> bytes | None:
    """Return a thread's stat, None where it has ended."""
    try:
        fd = os.open(f"/proc/{pid}/task/{tid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)


def last_cpu_of(stat: bytes) -> int | None:
    """Return the CPU a thread last ran on; the second field, its name, may hold anything, brackets and newlines too."""
    fields = stat.rpartition(b")")[2].split()
    try:
        return int(fields[LAST_CPU - 3])
    except (IndexError, ValueError):
        return None
