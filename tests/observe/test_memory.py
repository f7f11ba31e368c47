"""Memory by node, from numa_maps as kernels write it and of real processes."""

import mmap
import os
import subprocess
import sys

import pytest

from numa_launch.observe.memory import Memory, lines_of, memory_of, read_memory

LINES = rb"""00400000 prefer:1 file=/usr/bin/python3.11 mapped=700 mapmax=3 N0=700 kernelpagesize_kB=4
01f5a000 prefer:1 heap anon=1500 dirty=1500 N1=1500 kernelpagesize_kB=4
7f0000000000 bind:1 file=/anon_hugepage\040(deleted) huge anon=3 dirty=3 N1=3 kernelpagesize_kB=2048
7f1000000000 prefer:1 file=/dev/shm/ring\040(deleted) dirty=10 mapmax=8 N0=4 N1=6 kernelpagesize_kB=4
7f2000000000 prefer:1 file=/tmp/a\040N0=999\012b mapped=1 N1=1 kernelpagesize_kB=4
7ffc00000000 prefer:1 stack anon=8 dirty=8 active=0 N1=8 kernelpagesize_kB=4
7ffd00000000 prefer:1
"""


def test_pages_of_every_size_are_summed_and_files_are_told_apart() -> None:
    memory = memory_of(LINES.splitlines())
    assert memory.all_kb == {0: 4 * 704, 1: 4 * 1515 + 3 * 2048}
    assert memory.files_kb == {0: 4 * 700, 1: 4}
    assert memory.own_kb == {0: 4 * 4, 1: 4 * 1514 + 3 * 2048}
    assert memory.policy == "prefer:1"


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_it_does_not_matter_where_a_read_ends(size: int) -> None:
    pieces = [LINES[i : i + size] for i in range(0, len(LINES), size)]
    assert memory_of(lines_of(pieces)) == memory_of(LINES.splitlines())


@pytest.mark.parametrize(
    ("line", "policy"),
    [
        (b"00400000 default file=/bin/true mapped=1 N0=1", "default"),
        (b"00400000 prefer (many):0-1 anon=1 N0=1", "prefer (many):0-1"),
        (b"00400000 weighted interleave:0-1 anon=1 N0=1", "weighted interleave:0-1"),
        (b"00400000 bind=static:0 anon=1 N0=1", "bind=static:0"),
    ],
)
def test_policies_as_the_kernel_writes_them(line: bytes, policy: str) -> None:
    assert memory_of([line]).policy == policy


def test_a_process_without_memory_has_none() -> None:
    assert memory_of([]) == Memory({}, {}, None)


needs_numa_maps = pytest.mark.skipif(not os.path.exists("/proc/self/numa_maps"), reason="this kernel has no NUMA")


@needs_numa_maps
def test_fresh_pages_of_this_process_are_counted() -> None:
    before = sum(read_memory(os.getpid()).own_kb.values())
    with mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
        for at in range(0, len(fresh), mmap.PAGESIZE):
            fresh[at] = 1
        assert sum(read_memory(os.getpid()).own_kb.values()) >= before + (60 << 10)


@needs_numa_maps
def test_a_process_that_has_ended_raises() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(OSError):
        read_memory(child.pid)
