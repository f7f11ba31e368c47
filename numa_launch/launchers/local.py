"""Start the ranks of one host, and stay until all have ended: their output, signals, the first failure.

Example: ``run([Rank("/bin/true", ("true",), {"RANK": "0"})], environ, Settings())`` returns once it has ended with 0.
The processes are started by a keeper (``launchers/keeper.py``), which ends them where this process is killed.
"""

import contextlib
import errno
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from numa_launch.apply.backend import FLAGS
from numa_launch.errors import RanksError
from numa_launch.launchers.keeper import PASSED_ON, adopt_orphans, descendants, kill_adopted
from numa_launch.launchers.streams import Streams
from numa_launch.log import LOGGER
from numa_launch.reasons import counted

KEEPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that are passed on and mean that the ranks are to end; a second one kills them."""

GRACE_S = 30.0
"""As torchrun gives."""

KILLED_WITHIN_S = 10
"""How long killed processes may take to end; one that is stuck in the kernel (a driver's call) may not end at all."""

REPEATED_WITHIN_S = 0.2
"""A signal so soon after the first is the same request: Ctrl-C also comes from a parent that passes it on."""

LOOK_AGAIN_S = 0.005
FOREGROUND_AGAIN_S = 0.5
LONGEST_SHOWN = 500
"""Bytes of a line that are shown again of a rank that failed."""


class Rank(NamedTuple):
    """One process to start: the file to execute, what stands before the command in its arguments, its own variables."""

    path: str
    before: tuple[str, ...]
    variables: Mapping[str, str]


class Settings(NamedTuple):
    """How to run ranks.

    `grace_s`: seconds from a request to end until SIGKILL. `prefixed`: each line of output stands behind its rank.
    `log_dir`: where what rank 3 writes is also kept, as ``rank-3.out`` and ``rank-3.err``. `look`: asked of each
    started process, ``look(rank, pid)``, until it has an answer, which is printed then.
    """

    grace_s: float = GRACE_S
    prefixed: bool = True
    log_dir: str | None = None
    look: Callable[[int, int], str | None] | None = None


def rank_variables(rank: int, size: int) -> dict[str, str]:
    """Return what tells a rank who it is, named as torchrun does; all ranks are on this host."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}


def meeting_point(environ: Mapping[str, str]) -> dict[str, str]:
    """Return MASTER_ADDR and MASTER_PORT, as given, or else this host and a port that is free now."""
    address, port = environ.get("MASTER_ADDR") or "127.0.0.1", environ.get("MASTER_PORT")
    if not port:
        with socket.socket() as free:
            free.bind(("", 0))
            port = str(free.getsockname()[1])
    return {"MASTER_ADDR": address, "MASTER_PORT": port}


def run(
    ranks: Sequence[Rank],
    command: Sequence[str],
    environ: Mapping[str, str],
    settings: Settings,
    began_s: float | None = None,
) -> None:
    """Run the ranks to their end; returns where all have ended with 0.

    `command` are the arguments of all ranks, behind what stands before them, the program's name being the first.
    `began_s` is when their start began by the monotonic clock (default: now), for the time that is logged of it.

    The first that fails ends the others. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to them.
    Raises RanksError where one failed and where they cannot be started; no process of theirs is left then.
    """
    if not sys.executable:
        raise RanksError("ranks are kept by a Python of their own, and this program has none (it is frozen)", 1)
    began_s = time.monotonic() if began_s is None else began_s
    with contextlib.ExitStack() as stack:
        try:
            streams = Streams(stack, len(ranks), prefixed=settings.prefixed, log_dir=settings.log_dir)
            waker = stack.enter_context(signals_heard())
            keeper = Keeper(streams.given)
        except OSError as error:
            what = f"{error.filename}: " if error.filename else f"{counted(len(ranks), 'rank')} cannot be started: "
            fix = " (ulimit -n)" if error.errno == errno.EMFILE else ""
            raise RanksError(f"{what}{error.strerror}{fix}", 1) from None
        stack.callback(keeper.leave)
        Job(ranks, settings, streams=streams, keeper=keeper, waker=waker, began_s=began_s).run(command, environ)


@contextlib.contextmanager
def signals_heard() -> Iterator[int]:
    """Yield a descriptor that each signal to pass on writes its number to; what was set before is put back.

    A signal that is ignored here, as by nohup, is ignored by the ranks too.
    """
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    heard = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: None) for number in heard}
    before_waker = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(before_waker)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


class Keeper:
    """The process that starts and ends the ranks, as the launcher sees it."""

    def __init__(self, given: Sequence[tuple[int, int, int]]) -> None:
        """Start it; raises OSError where that cannot be done."""
        fds = sorted({fd for each in given for fd in each})
        command = [sys.executable, *FLAGS, KEEPER]
        self.spared = descendants() if has_children() else []
        """Those that are none of the ranks'."""
        adopt_orphans()
        # Until it hears them itself it would die of them.
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=fds, start_new_session=True
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)
        assert self._process.stdin and self._process.stdout
        self._control, self._report = self._process.stdin, self._process.stdout
        self._rest = b""
        self.has_ended = False
        self.is_done = False
        """It has ended as it should, no process being left."""

    @property
    def fd(self) -> int:
        """Readable when it has something to say."""
        return self._report.fileno()

    def tell(self, line: str) -> None:
        """Give it an order, though somebody has stopped it; where it is gone, that is seen at the end of its words."""
        with contextlib.suppress(BrokenPipeError):
            self._control.write(line.encode() + b"\n")
            self._control.flush()
        self._process.send_signal(signal.SIGCONT)

    def says(self) -> list[dict[str, Any]]:
        """Return what it has to say after one read; `has_ended` is true once that is all."""
        chunk = os.read(self.fd, 65536)
        self.has_ended = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        facts = [json.loads(line) for line in lines]
        self.is_done |= {"done": True} in facts
        return [fact for fact in facts if "done" not in fact]

    def give_up(self) -> None:
        """Kill it, which makes its children ours."""
        self._process.kill()

    def leave(self) -> None:
        """Let it end, which it does at once where no process is left; else it kills them, its launcher being gone."""
        for pipe in (self._control, self._report):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(KILLED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.give_up()
            kill_adopted(self.spared, [], KILLED_WITHIN_S)


def has_children() -> bool:
    """Return whether this process has any, as one has that a shell with background jobs has become."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class Job:
    """The ranks while they run."""

    def __init__(
        self,
        ranks: Sequence[Rank],
        settings: Settings,
        *,
        streams: Streams,
        keeper: Keeper,
        waker: int,
        began_s: float,
    ) -> None:
        self.ranks = ranks
        self.settings = settings
        self.streams = streams
        self.keeper = keeper
        self.waker = waker
        self.began_s = began_s
        self.outputs = list(streams.outputs)
        self.groups: list[int] = []
        """The process groups of all ranks, which are their PIDs."""
        self.awaited_ranks = set(range(len(ranks)))
        """Those whose end or error is not known yet."""
        self.running: dict[int, int] = {}
        """Rank → PID."""
        self.unseen: dict[int, int] = {}
        """Rank → PID of those that `look` had no answer for yet."""
        self.failed_rank: int | None = None
        self.failure: RanksError | None = None
        self.signalled_at: float | None = None
        self.kill_at: float | None = None
        self.give_up_at: float | None = None

    def run(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the ranks and serve them until the last process has ended and all output is written."""
        specs = [
            {"path": texts(path), "before": texts(before), "variables": texts(variables), "fds": fds}
            for (path, before, variables), fds in zip(self.ranks, self.streams.given, strict=True)
        ]
        order = {"environ": texts(environ), "command": texts(command), "blocked": list(self.keeper.blocked)}
        self.keeper.tell(json.dumps({**order, "ranks": specs}))
        self.streams.theirs.close()
        while not self.keeper.has_ended or self.outputs:
            self.serve()
        self.put_last_lines()
        while self.streams.stdout.has_backlog or self.streams.stderr.has_backlog:
            self.serve()
        if self.failure:
            raise self.failure

    def serve(self) -> None:
        """Wait until something happens, and do what it asks for."""
        actions = {fd: (event, action) for fd, event, action in self.awaited()}
        poll = select.poll()
        for fd, (event, _) in actions.items():
            poll.register(fd, event)
        happened = poll.poll(self.patience_ms())
        for fd, _ in happened:
            actions[fd][1]()
        if self.keeper.has_ended and not happened:
            # What is left is held open by a process that is none of ours.
            self.outputs = [output for output in self.outputs if output.must_wait]
        self.look()
        self.look_at_clock()
        for complaint in self.streams.complaints:
            self.say(logging.WARNING, complaint)
        self.streams.complaints.clear()

    def awaited(self) -> Iterator[tuple[int, int, Callable[[], None]]]:
        """Yield each descriptor with the event of poll(2) that is waited for, and what to do then."""
        yield self.waker, select.POLLIN, self.hear
        if not self.keeper.has_ended:
            yield self.keeper.fd, select.POLLIN, self.listen
        for output in self.outputs:
            if not output.must_wait:
                yield output.fd, select.POLLIN, lambda output=output: self.pass_on(output)  # type: ignore[misc]
        for sink in (self.streams.stdout, self.streams.stderr, self.streams.feed):
            if sink and sink.fd is not None and sink.has_backlog:
                yield sink.fd, select.POLLOUT, sink.write_some
        if self.wants_input() and is_foreground():
            yield 0, select.POLLIN, self.read_input

    def patience_ms(self) -> float | None:
        """Return how long to wait at most, None: until something happens."""
        waits = [at - time.monotonic() for at in (self.kill_at, self.give_up_at) if at is not None]
        waits += [LOOK_AGAIN_S] * bool(self.unseen)
        waits += [FOREGROUND_AGAIN_S] * (self.wants_input() and not is_foreground())
        waits += [0] * (self.keeper.has_ended and not any(output.must_wait for output in self.outputs))
        return max(0, 1000 * min(waits)) if waits else None

    def say(self, level: int, message: str) -> None:
        """Say something among the ranks' lines, as the logger's level allows."""
        if logging.getLogger(LOGGER).isEnabledFor(level):
            self.put(f"numa-launch: {message}")

    def put(self, line: str) -> None:
        self.streams.stderr.write(line.encode("utf-8", "surrogateescape") + b"\n")

    def pass_on(self, output: Any) -> None:
        if not output.read():
            self.outputs.remove(output)

    # The terminal, read for rank 0.

    def wants_input(self) -> bool:
        return self.streams.feed is not None and self.streams.feed.takes_more and 0 in self.running

    def read_input(self) -> None:
        assert self.streams.feed
        try:
            typed = os.read(0, 4096)
        except OSError:  # the terminal is gone
            typed = b""
        if typed:
            self.streams.feed.write(typed)
        else:
            self.streams.feed.complete()

    # What the keeper says.

    def listen(self) -> None:
        for fact in self.keeper.says():
            rank = fact.get("rank", 0)
            if "pid" in fact:
                self.running[rank] = fact["pid"]
                self.groups.append(fact["pid"])
                if rank == len(self.ranks) - 1:
                    taken_s = time.monotonic() - self.began_s
                    self.say(logging.DEBUG, f"{counted(len(self.ranks), 'rank')} started in {taken_s:.3f} s")
                if self.settings.look:
                    self.unseen[rank] = fact["pid"]
            elif "error" in fact:
                self.awaited_ranks = set(self.running)  # no other is started
                self.fail(rank, f"could not be started: {fact['error']}", 126)
            elif "status" in fact:
                self.ended(rank, fact["status"])
            else:
                self.end_those_left(fact["left"])
        if self.keeper.has_ended:
            self.kill_at = self.give_up_at = None
            if not self.keeper.is_done:
                self.end_adopted()

    def end_adopted(self) -> None:
        """End what the keeper has left, which was killed: its orphans are ours."""
        left = kill_adopted(self.keeper.spared, self.groups, KILLED_WITHIN_S)
        self.running.clear()
        self.unseen.clear()
        if self.awaited_ranks:
            self.fail(min(self.awaited_ranks), "was killed, as the process that keeps the ranks was", 1)
        if left:
            stuck = f"processes did not end within {KILLED_WITHIN_S} s of SIGKILL (PID {', '.join(map(str, left))})"
            self.say(logging.WARNING, stuck)
            self.failure = self.failure or RanksError(stuck, 1)

    def ended(self, rank: int, status: int) -> None:
        del self.running[rank]
        self.awaited_ranks.discard(rank)
        if self.unseen.pop(rank, None):
            self.put(f"numa-launch: rank {rank} had ended before it could be looked at")
        if status > 0:
            self.fail(rank, f"exited with status {status}", status)
        elif status < 0:
            self.fail(rank, f"was killed by {signal_name(-status)}", 128 - status)

    def fail(self, rank: int, how: str, exit_status: int) -> None:
        """Keep the first failure, and have the others end."""
        if self.failure:
            return
        self.failed_rank, self.failure = rank, RanksError(f"rank {rank} {how}", exit_status)
        if self.running and self.signalled_at is None and not self.keeper.has_ended:
            self.say(logging.INFO, f"rank {rank} {how}: ending the other {len(self.running)}")
            self.ask_to_end(signal.SIGTERM)

    def end_those_left(self, count: int) -> None:
        self.say(logging.INFO, f"all ranks have ended: ending {counted(count, 'process')} that they left behind")
        self.ask_to_end(signal.SIGTERM)

    def put_last_lines(self) -> None:
        """Show again what the rank that failed printed last, as others may have printed much since."""
        if self.failed_rank is not None and (lines := self.streams.last[self.failed_rank]):
            self.put(f"numa-launch: the last lines of rank {self.failed_rank}:")
            self.streams.stderr.write(b"".join(b"  " + line[:LONGEST_SHOWN] + b"\n" for line in lines))

    # Signals and time.

    def hear(self) -> None:
        for number in os.read(self.waker, 4096):
            if number not in PASSED_ON:
                continue  # another handler's
            if number not in ENDING:
                self.keeper.tell(f"signal {number}")
            elif self.keeper.has_ended:
                raise self.failure or RanksError("interrupted before all output was written", 128 + number)
            elif self.signalled_at is None:
                self.signalled_at = time.monotonic()
                self.say(logging.INFO, f"{signal_name(number)} is passed on to the ranks; a second one kills them")
                self.ask_to_end(number)
            elif time.monotonic() >= self.signalled_at + REPEATED_WITHIN_S:
                self.kill()

    def ask_to_end(self, number: int) -> None:
        """Send a signal that ends the ranks, and SIGKILL when their time is over."""
        self.keeper.tell(f"signal {number}")
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self.settings.grace_s

    def look_at_clock(self) -> None:
        now = time.monotonic()
        if self.kill_at is not None and now >= self.kill_at:
            self.say(logging.WARNING, f"killing what has not ended within {self.settings.grace_s:g} s")
            self.kill()
        if self.give_up_at is not None and now >= self.give_up_at:
            self.give_up_at = None
            self.keeper.give_up()

    def kill(self) -> None:
        self.keeper.tell("kill")
        self.kill_at = None
        if self.give_up_at is None:
            self.give_up_at = time.monotonic() + KILLED_WITHIN_S

    def look(self) -> None:
        """Print what there is to see of processes that had not become their command before."""
        for rank, pid in list(self.unseen.items()):
            assert self.settings.look
            seen = self.settings.look(rank, pid)
            if seen:
                self.put(f"numa-launch: {seen}")
                del self.unseen[rank]


def is_foreground() -> bool:
    """Return whether this process may read its terminal."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return True  # no terminal any more: reading says so


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def texts(value: Any) -> Any:
    """Return strings as JSON carries them to the keeper: a character for each byte, as not all bytes are UTF-8."""
    if isinstance(value, Mapping):
        return {texts(name): texts(each) for name, each in value.items()}
    if isinstance(value, str):
        return os.fsencode(value).decode("latin-1")
    return [texts(each) for each in value]
