"""The descriptors of a launch: what each rank reads and writes, and what its output goes to.

Example: ``Streams(stack, size=2, prefixed=True, log_dir="logs").given[1]`` are the stdin, stdout and stderr of rank 1.
"""

import contextlib
import errno
import os
import stat
from collections import deque
from pathlib import Path

from numa_launch.launchers.relay import LAST_LINES, Output, Sink, prefix_of


class Streams:
    """Pipes from every rank, to our own standard output and error and to files; all is closed with `stack`.

    Only rank 0 is given our standard input: itself, but where that is a terminal a pipe, as the ranks are background
    jobs there, which may not read it. Raises OSError where a file cannot be opened or there are too few descriptors.
    """

    def __init__(self, stack: contextlib.ExitStack, size: int, *, prefixed: bool, log_dir: str | None) -> None:
        closed = open_standard_streams()
        self._stack = stack
        self._log_dir = None if log_dir is None else Path(log_dir)
        if self._log_dir:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        self.theirs = stack.enter_context(contextlib.ExitStack())
        """What only ranks should have open once they are started, so that the end of their output is seen."""
        self.complaints: list[str] = []
        self.stdout = self._sink(None if 1 in closed else unblocked(stack, 1), "standard output")
        self.stderr = self._sink(None if 2 in closed else unblocked(stack, 2), "standard error")
        self.feed: Feed | None = None
        """What feeds rank 0 from the terminal."""
        self.outputs: list[Output] = []
        self.last = [deque[bytes](maxlen=LAST_LINES) for _ in range(size)]
        """The latest lines of each rank."""
        nothing = own(self.theirs, os.open(os.devnull, os.O_RDWR))
        self.given: list[tuple[int, int, int]] = []
        for rank in range(size):
            prefix = prefix_of(rank, size) if prefixed else None
            out = self._output(rank, "out", self.stdout, prefix)
            err = self._output(rank, "err", self.stderr, prefix)
            self.given.append((nothing if rank else self._input(), out, err))

    def _sink(self, fd: int | None, name: str, *, is_log: bool = False) -> Sink:
        def complain(problem: str) -> None:
            self.complaints.append(f"{name}: {problem}; what ranks still print there is dropped")

        return Sink(fd, complain, is_log=is_log)

    def _output(self, rank: int, name: str, sink: Sink, prefix: bytes | None) -> int:
        """Return what a rank writes to."""
        reader, writer = os.pipe()
        own(self._stack, reader)
        own(self.theirs, writer)
        os.set_blocking(reader, False)
        log = None
        if self._log_dir:
            path = self._log_dir / f"rank-{rank}.{name}"
            fd = own(self._stack, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o666))
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "it is no regular file", str(path))
            log = self._sink(fd, str(path), is_log=True)
        self.outputs.append(Output(reader, prefix, sink, log, self.last[rank]))
        return writer

    def _input(self) -> int:
        """Return what rank 0 reads."""
        if not os.isatty(0):
            return own(self.theirs, os.dup(0))
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self.feed = Feed(writer)
        self._stack.callback(self.feed.close)
        return own(self.theirs, reader)


class Feed(Sink):
    """What is typed for rank 0, on its way through a pipe."""

    def __init__(self, writer: int) -> None:
        super().__init__(writer, lambda _: None)
        self._writer = writer
        self._is_open = True
        self._is_complete = False

    @property
    def takes_more(self) -> bool:
        return self.fd is not None and not self._is_complete and not self.is_full

    def complete(self) -> None:
        """Let rank 0 see the end of its input once it has read what waits."""
        self._is_complete = True
        self.close_if_written()

    def write_some(self) -> None:
        super().write_some()
        self.close_if_written()

    def close_if_written(self) -> None:
        if self._is_complete and not self.has_backlog:
            self.close()

    def close(self) -> None:
        if self._is_open:
            os.close(self._writer)
        self._is_open = False
        self.stop()


def own(stack: contextlib.ExitStack, fd: int) -> int:
    """Have the descriptor closed when the stack is left."""
    stack.callback(os.close, fd)
    return fd


def unblocked(stack: contextlib.ExitStack, fd: int) -> int:
    """Return a descriptor of the same terminal that never waits, as one whose output is held (Ctrl-S) would.

    It is opened anew, since O_NONBLOCK on `fd` itself would be seen by all who share it.
    """
    info = os.fstat(fd)
    if not stat.S_ISCHR(info.st_mode) or info.st_rdev == PTMX:
        return fd
    try:
        return own(stack, os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError:  # such as a terminal of another user after su
        return fd


PTMX = os.makedev(5, 2)
"""The device of which each opening makes another terminal."""


def open_standard_streams() -> set[int]:
    """Return which of 0, 1 and 2 were closed; each is /dev/null then, so that no pipe of ours takes its number."""
    closed = set()
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            closed.add(fd)
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    return closed
