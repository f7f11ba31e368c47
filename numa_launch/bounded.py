"""Run a command for a limited time and read what it prints, whatever it does.

Example: ``run_bounded(["numactl", "--membind=9", "true"], 10)`` is ``(1, "libnuma: Warning: node argument 9 is …")``.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable

HUNG = -1000
"""A status that no process has."""

NOT_STARTED = 126
"""What a shell gives for a command that it cannot start."""


def run_bounded(
    command: list[str], time_limit_s: float, most: int = 65536, *, errors: bool = True
) -> tuple[int | None, str]:
    """Return exit status and the first `most` bytes of output; HUNG after the time limit, None: status unknown.

    A signal that ended it is a negative status; 126 and the reason stand for a command that could not be started. An
    open pipe or a flood of output does not matter, and what the command started and left behind is ended with it.
    Without `errors` its stderr is dropped.
    """
    pid, ended = None, False
    try:
        reader, writer = os.pipe()
    except OSError as error:
        return NOT_STARTED, error.strerror or str(error)
    try:
        os.set_blocking(reader, False)
        # No signal may raise between the start and this process's knowing of it. What came just before raises here.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            pid = start(command, writer, writer if errors else None, before)
        except OSError as error:
            return NOT_STARTED, error.strerror or str(error)
        finally:
            os.close(writer)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        output = bytearray()
        ended, status = wait_and_read(pid, reader, output, time_limit_s, most)
        return status, output.decode("utf-8", "replace")
    finally:
        if pid is not None and not ended:
            end(pid)
        os.close(reader)


def start(command: list[str], output: int, errors: int | None, mask: Iterable[int]) -> int:
    """Start a command in a session of its own where the C library can, else in a process group, to end it whole.

    By posix_spawn, as importing subprocess costs as much as a start.
    """
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, output, 1)]
    if errors is None:
        actions.append((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0))
    else:
        actions.append((os.POSIX_SPAWN_DUP2, errors, 2))
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]  # which Python ignores, and no child of its should
    options = {"file_actions": actions, "setsigmask": mask, "setsigdef": defaults}
    try:
        return os.posix_spawnp(command[0], command, os.environ, setsid=True, **options)  # type: ignore[arg-type]
    except NotImplementedError:
        return os.posix_spawnp(command[0], command, os.environ, setpgroup=0, **options)  # type: ignore[arg-type]


def end(pid: int) -> None:
    """Kill a command and what it started; one that is stuck in the kernel does not even heed that."""
    end_group(pid)
    gives_up_at = time.monotonic() + 1
    while not ended_status(pid)[0] and time.monotonic() < gives_up_at:
        time.sleep(0.005)


def end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def wait_and_read(pid: int, reader: int, output: bytearray, time_limit_s: float, most: int) -> tuple[bool, int | None]:
    """Return whether the child ended in time, and its status (None: somebody else reaped it), reading all the while."""
    gives_up_at = time.monotonic() + time_limit_s
    process = open_process(pid)
    wait = waiter(reader, process)
    try:
        while True:
            ended, status = ended_status(pid)
            drain(reader, output, most)
            if ended:
                return True, status
            left_s = gives_up_at - time.monotonic()
            if left_s <= 0:
                return False, HUNG
            # Not longer, as a signal that comes just before the wait is only heeded after it.
            wait(min(left_s, 0.25 if process is not None else 0.01))
    finally:
        if process is not None:
            os.close(process)


def waiter(reader: int, process: int | None) -> Callable[[float], None]:
    """Return what waits until there is something to read, or the process has ended, at most so many seconds."""
    if not hasattr(select, "poll"):  # as eventlet's patch leaves it
        return lambda seconds: time.sleep(min(seconds, 0.01))
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    if process is not None:
        poll.register(process, select.POLLIN)

    def wait(seconds: float) -> None:
        for fd, event in poll.poll(1000 * seconds):
            if fd == reader and event & select.POLLHUP:  # nothing more to read: only its end is waited for
                poll.unregister(reader)

    return wait


def open_process(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended; None on kernels before 5.3."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def ended_status(pid: int) -> tuple[bool, int | None]:
    """Return whether the process has ended, and its status; what it left in its process group is ended then.

    That comes before it is reaped, after which its number may be another's. The status is None where somebody else
    reaped it.
    """
    try:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False, None
        end_group(pid)
        return True, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return True, None


def drain(reader: int, output: bytearray, most: int) -> None:
    """Read what is there, keep the first `most` bytes in all, and stop for now after sixteen times 64 KiB."""
    for _ in range(16):
        try:
            chunk = os.read(reader, 65536)
        except BlockingIOError:
            return
        if not chunk:
            return
        output += chunk[: most - len(output)]
