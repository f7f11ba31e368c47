"""Carry what ranks print to the terminal and to files: whole lines, each behind its rank, in little memory.

Example: what rank 3 of 16 prints as ``loss 0.1`` comes out as ``[ 3] loss 0.1``.
"""

import os
import select
import stat
from collections import deque
from collections.abc import Callable

MOST_BACKLOG = 256 * 1024
"""Bytes that wait to be written before no more is read."""

MOST_LINE = 64 * 1024
"""Bytes of a line that are held back while its end is awaited."""

AT_ONCE = select.PIPE_BUF
"""Bytes that a descriptor takes without waiting where poll(2) says it takes any."""

LAST_LINES = 10


class Sink:
    """A descriptor to write to, only when it takes something: a reader that is slow or stopped must not hold us up.

    A regular file always does, and so `is_log` takes the descriptor to. What cannot be written (no reader, a full disk)
    is dropped from then on, and said once through `complain`. None is a descriptor that was closed before.
    """

    def __init__(self, fd: int | None, complain: Callable[[str], None], *, is_log: bool = False) -> None:
        self.fd = fd
        self._complain = complain
        self._waiting = bytearray()
        self._never_waits = fd is not None and (is_log or stat.S_ISREG(os.fstat(fd).st_mode))

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MOST_BACKLOG

    @property
    def has_backlog(self) -> bool:
        return bool(self._waiting)

    def write(self, data: bytes) -> None:
        """Take data to write: at once into a file, else when `write_some` is called."""
        if self.fd is None:
            return
        self._waiting += data
        while self._never_waits and self._waiting:
            self.write_some()

    def write_some(self) -> None:
        """Write what the descriptor takes without waiting, up to the end of a line where one is in that."""
        if self.fd is None:
            return
        most = MOST_BACKLOG if self._never_waits else AT_ONCE
        end = self._waiting.rfind(b"\n", 0, most) + 1
        try:
            written = os.write(self.fd, self._waiting[: end or most])
        except BlockingIOError:
            return
        except OSError as error:
            self.stop()
            self._complain(error.strerror or str(error))
            return
        del self._waiting[:written]

    def stop(self) -> None:
        """Drop what waits, and whatever comes."""
        self.fd = None
        self._waiting.clear()


class Output:
    """One stream of a rank: each line goes to `sink` behind `prefix` (None: as it comes), everything to `log` as it is.

    `last` keeps the latest lines of the rank.
    """

    def __init__(self, fd: int, prefix: bytes | None, sink: Sink, log: Sink | None, last: "deque[bytes]") -> None:
        self.fd = fd
        self.prefix = prefix
        self.sink = sink
        self.log = log
        self.last = last
        self._line = b""

    @property
    def must_wait(self) -> bool:
        """Whether what was read before has to be written first."""
        return self.sink.is_full

    def read(self) -> bool:
        """Pass on what there is, at most 64 KiB; return whether more can come."""
        try:
            chunk = os.read(self.fd, 65536)
        except BlockingIOError:
            return True
        if not chunk:
            self.finish()
            return False
        if self.log:
            self.log.write(chunk)
        if self.prefix is None:
            self.sink.write(chunk)
        lines, newline, self._line = (self._line + chunk).rpartition(b"\n")
        if newline:
            self._put(lines)
        if len(self._line) > MOST_LINE:
            self._put(self._line)
            self._line = b""
        return True

    def finish(self) -> None:
        """Pass on a last line without an end."""
        if self._line:
            self._put(self._line)
        self._line = b""

    def _put(self, lines: bytes) -> None:
        """Pass on whole lines, the last one's end left out."""
        if self.prefix is not None:
            self.sink.write(self.prefix + lines.replace(b"\n", b"\n" + self.prefix) + b"\n")
        self.last.extend(lines.rsplit(b"\n", LAST_LINES)[-LAST_LINES:])


def prefix_of(rank: int, size: int) -> bytes:
    """Return what stands before each line of a rank, as wide for each of them."""
    return f"[{rank:{len(str(size - 1))}}] ".encode()
