"""Small files of sysfs and procfs, read so that nothing there can crash, block or fill the memory.

Example: ``read_text("/sys/devices/system/node/online")`` is ``"0-1\\n"``, or None where it cannot be read.
A captured machine may hold anything: a directory where a file should be, a FIFO, a link in a loop, a link to /dev/zero.
"""

import os
import stat
from collections.abc import Callable
from typing import TypeVar

MAX_BYTES = 4 << 20
"""More than any of these files holds (a cpulist of 65,536 single CPUs is 390 kB); what is longer is endless."""

T = TypeVar("T")


def open_file(path: str) -> int | None:
    """Return a descriptor of a regular file, None for anything else: a FIFO would be empty, /dev/zero endless."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def read_text(path: str, most: int = MAX_BYTES) -> str | None:
    """Return the file's text, or None where it is missing, unreadable or longer than MAX_BYTES.

    With a smaller `most`, reading stops after that many bytes and what was read is returned. What is no UTF-8 is
    replaced.
    """
    read = read_bytes(path, most, piece=65536)
    return None if read is None or len(read) >= MAX_BYTES else read.decode("utf-8", "replace")


def read_first_line(path: str) -> str | None:
    """Return the first line, read in small pieces: the kernel makes numa_maps as it is read, a mapping at a time."""
    read = read_bytes(path, most=8192, piece=64, until=b"\n")
    return None if read is None else read.decode("utf-8", "replace").split("\n")[0]


def read_bytes(path: str, most: int, piece: int, until: bytes | None = None) -> bytearray | None:
    """Return at most `most` bytes, read `piece` by piece until the end or until one holds `until`."""
    fd = open_file(path)
    if fd is None:
        return None
    try:
        read = bytearray()
        while len(read) < most and (chunk := os.read(fd, min(piece, most - len(read)))):
            read += chunk
            if until and until in chunk:
                break
        return read
    except OSError:
        return None
    finally:
        os.close(fd)


def read_value(path: str, parse: Callable[[str], T]) -> T | None:
    """Return what `parse` makes of the file, or None where it cannot be read or parsed (ValueError)."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return parse(text.strip(" \t\n\0"))
    except ValueError:
        return None


def list_names(path: str) -> list[str]:
    """Return the names in a directory, sorted; none where it cannot be listed."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def top_of(root: str | os.PathLike[str]) -> str:
    """Return what to put before an absolute path to find it below `root`: nothing for ``/`` itself."""
    return os.path.normpath(os.fspath(root)).rstrip("/")


def printable(text: str | None) -> str | None:
    """Return the text without what would move a terminal's cursor or cannot be printed at all."""
    return text and "".join(c if c.isprintable() else "?" for c in text)
