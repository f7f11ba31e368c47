"""``"0-3,8"`` and hexadecimal masks  <->  ``frozenset[int]`` of CPU or node ids.

Example: ``parse_ids("0-3,8") == frozenset({0, 1, 2, 3, 8})`` and ``format_ids({0, 1, 2, 4}) == "0-2,4"``.
The formats are those of the kernel's cpulist and cpumap files (Documentation/admin-guide/cputopology.rst).
"""

import re
from collections.abc import Iterable

MAX_ID = 65535
"""No kernel has higher ids (NR_CPUS is at most 8192); it keeps ``0-99999999999`` from filling the memory."""

_LIST = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*")
_MASK = re.compile(r"[0-9a-fA-F]{1,16}(,[0-9a-fA-F]{8})*")


def parse_ids(text: str) -> frozenset[int]:
    """Return the ids of a kernel list; blanks around it are ignored and an empty list has no ids.

    Raises ValueError with the value for anything else: letters, ``1-``, ``4-1``, ``1,,2``, ids above MAX_ID.
    """
    text = text.strip(" \t\n\0")
    if not text:
        return frozenset()
    if not _LIST.fullmatch(text):
        raise ValueError(f"{shortened(text)} is not a list of ids such as 0-3,8")
    ids: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if len(first) > 9 or len(last) > 9 or int(last or first) > MAX_ID:
            raise ValueError(f"{shortened(text)} has an id above {MAX_ID}")
        if int(last or first) < int(first):
            raise ValueError(f"{shortened(text)} has the descending range {part}")
        ids.update(range(int(first), int(last or first) + 1))
    return frozenset(ids)


def parse_mask(text: str) -> frozenset[int]:
    """Return the ids of a kernel mask such as ``00000000,000000ff``: words of 32 bits, the highest first."""
    text = text.strip(" \t\n\0")
    if not _MASK.fullmatch(text):
        raise ValueError(f"{shortened(text)} is not a mask such as 00000000,000000ff")
    bits = bin(int(text.replace(",", ""), 16))[2:]
    return frozenset(i for i, bit in enumerate(reversed(bits)) if bit == "1")


def format_ids(ids: Iterable[int]) -> str:
    """Return the ids as exact ascending ranges: ``0-2,4``, never ``0-4`` with a hole inside; no ids is ``""``."""
    ranges: list[list[int]] = []
    for i in sorted(ids):
        if ranges and i == ranges[-1][1] + 1:
            ranges[-1][1] = i
        else:
            ranges.append([i, i])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def union(sets: Iterable[Iterable[int]]) -> frozenset[int]:
    """Return all ids of these sets, none for no sets."""
    return frozenset[int]().union(*sets)


def shortened(text: str) -> str:
    """Return a user's value for a message: quoted, on one line, at most some 60 characters of it."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
