"""Threads of real processes, whatever they are called."""

import os
import subprocess
import sys

import pytest

from numa_launch.observe.threads import last_cpu_of, read_threads
from tests.host import ALLOWED, CPU_A, CPU_B

PROGRAM = """
import ctypes, os, sys, threading
ctypes.CDLL(None).prctl(15, b"a) R (\\n1 2")
ready, done = threading.Event(), threading.Event()
def narrow():
    os.sched_setaffinity(0, {%d})
    ready.set()
    done.wait()
thread = threading.Thread(target=narrow)
thread.start()
ready.wait()
print(thread.native_id, flush=True)
sys.stdin.read()
done.set()
"""


@pytest.mark.skipif(len(ALLOWED) < 2, reason="this process may use one CPU only")
def test_a_re_pinned_thread_of_another_process_is_seen() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM % CPU_B], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout
        tid = int(child.stdout.readline())
        main, other = read_threads(child.pid)
        child.stdin.close()
    assert (main.tid, main.cpus) == (child.pid, frozenset(ALLOWED))
    assert (other.tid, other.cpus, other.last_cpu) == (tid, frozenset({CPU_B}), CPU_B)
    assert main.last_cpu in range(os.cpu_count() or CPU_A + 1)


def test_the_calling_thread_s_last_cpu_is_the_one_it_is_bound_to() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CPU_A})
    try:
        own = read_threads(os.getpid())[0]
    finally:
        os.sched_setaffinity(0, before)
    assert own.cpus == frozenset({CPU_A})
    assert own.last_cpu == CPU_A


def test_a_process_that_never_was_raises() -> None:
    with pytest.raises(OSError):
        read_threads(2**22 + 1)


@pytest.mark.parametrize("stat", [b"", b"7 (x", b"7 (x) S 1 2", b"7 (x) " + b"y " * 50])
def test_a_stat_that_is_cut_says_nothing(stat: bytes) -> None:
    assert last_cpu_of(stat) is None
