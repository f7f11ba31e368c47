"""Where a process's memory lies: one read of its ``numa_maps``, which the kernel makes while it is read.

Example: ``read_memory(4711)`` is ``Memory({0: 4096, 1: 1048576}, {0: 4096}, "prefer:1")``.
A read walks all page tables and holds the process's memory lock now and then: about 12 ms for each GiB in pages of
4 KiB. Source: proc(5), kernel fs/proc/task_mmu.c.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

PIECE = 1 << 16
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024

_PAGES = re.compile(rb" N(\d+)=(\d+)")
_PAGE_SIZE = re.compile(rb" kernelpagesize_kB=(\d+)")
_POLICY = re.compile(rb"[0-9a-f]+ ((?:prefer \(many\)|weighted interleave|[a-z_]+)[^ \n]*)")
_SHARED_MEMORY = re.compile(rb" file=/(?:dev/shm/|dev/zero|memfd:|SYSV|anon_hugepage)")


class Memory(NamedTuple):
    """Resident memory in KiB by node; `files_kb` is what of it is page cache of files.

    Files lie where whoever read them first was, so they say nothing of the process. `policy` is that of the first
    mapping, the main thread's (``default``, ``bind:1``); None where there is no mapping.
    """

    all_kb: Mapping[int, int]
    files_kb: Mapping[int, int]
    policy: str | None

    @property
    def own_kb(self) -> dict[int, int]:
        """What the process placed itself, by node."""
        return {node: size - self.files_kb.get(node, 0) for node, size in self.all_kb.items()}


def read_memory(pid: int) -> Memory:
    """Return where a process's memory lies; raises OSError where that may not be read, or the process has ended.

    FileNotFoundError also means a kernel without NUMA.
    """
    with open(f"/proc/{pid}/numa_maps", "rb", buffering=0) as maps:
        return memory_of(lines_of(iter(lambda: maps.read(PIECE), b"")))


def lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield whole lines of what comes in pieces, however large it is in all."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    if rest:
        yield rest


def memory_of(lines: Iterable[bytes]) -> Memory:
    """Return the sums over the lines of a numa_maps; a file's name cannot look like a count, as blanks are escaped."""
    all_kb: dict[int, int] = {}
    files_kb: dict[int, int] = {}
    policy = None
    for line in lines:
        if policy is None and (found := _POLICY.match(line)):
            policy = found[1].decode()
        counts = _PAGES.findall(line)
        if not counts:
            continue
        size = _PAGE_SIZE.search(line)
        page_kb = int(size[1]) if size else PAGE_KB
        is_file = b" file=" in line and b" huge" not in line and not _SHARED_MEMORY.search(line)
        for node_text, pages in counts:
            node, kb = int(node_text), int(pages) * page_kb
            all_kb[node] = all_kb.get(node, 0) + kb
            if is_file:
                files_kb[node] = files_kb.get(node, 0) + kb
    return Memory(all_kb, files_kb, policy)
