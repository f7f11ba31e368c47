"""Keep the ranks of one launch, so that none outlives it, whoever is killed: start them, signal them, tell their ends.

Example: ``python -I -S -X utf8 keeper.py``, which the launcher starts and talks to over stdin and stdout.

A process of its own between the launcher and the ranks. Orphans of ranks become its children (PR_SET_CHILD_SUBREAPER,
prctl(2)), those that called setsid(2) too, so it can end all of them once the launcher is gone: its stdin then ends.
Where it is killed itself, they become the launcher's, which then does the same.

The launcher writes a line of JSON, ``{"environ": {…}, "command": […], "blocked": […], "ranks": [{"path", "before",
"variables", "fds"}, …]}``, in which every text stands for bytes (latin-1), then lines ``signal 15`` and ``kill``. It
reads lines of JSON: ``{"rank": 0, "pid": 7}``, ``{"rank": 0, "error": "…"}``, ``{"rank": 0, "status": -9}``, ``{"left":
2}`` where all ranks have ended and have left that many processes, and ``{"done": true}`` once none is left.

It is started in a session of its own, so that no signal of the terminal and none to the launcher's group comes here,
and with the signals blocked that the launcher passes on; `blocked` is what was blocked before.

It imports little, and nothing of numa_launch, as ranks wait for its start.
"""

import contextlib
import errno
import json
import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_CHILD_SUBREAPER = 36
CONTROL, REPORT = 0, 1
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""The signals that the launcher passes on to the ranks."""

IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
PAUSE_MS = 50
"""Between two looks for processes that were just started by one that is being killed."""


def main() -> None:
    """Start the ranks that stdin names, and stay until they and all they started have ended."""
    adopt_orphans()
    for number in PASSED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:  # what a shell ignores for us, the ranks ignore too
            signal.signal(number, lambda *_: None)
    waker = wake_at_child_ends()
    lines = Lines(CONTROL)
    line = lines.wait_for_one()
    if line is None:
        return
    order = json.loads(line)
    signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])
    keep(start_all(order), lines, waker)
    report({"done": True})


def adopt_orphans() -> None:
    """Make what a descendant leaves behind this process's child; without ctypes only process groups can be ended."""
    with contextlib.suppress(ImportError, OSError):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wake_at_child_ends() -> int:
    """Return a descriptor that becomes readable when a child has ended."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


class Lines:
    """The lines that come in on a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.rest = b""
        self.waiting: list[bytes] = []
        self.ended = False

    def read(self) -> None:
        """Read once, and add the whole lines to those `waiting`; `ended` is true once there will be no more."""
        chunk = os.read(self.fd, 1 << 20)
        self.ended = not chunk
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        self.waiting += lines

    def wait_for_one(self) -> "bytes | None":
        while not self.waiting and not self.ended:
            self.read()
        return self.waiting.pop(0) if self.waiting else None


def start_all(order: "dict[str, Any]") -> "dict[int, int]":
    """Start the ranks in their order, up to the first that cannot be; return PID → rank."""
    environ, command, specs = variables_of(order["environ"]), list(map(bytes_of, order["command"])), order["ranks"]
    for spec in specs:
        for fd in spec["fds"]:
            os.set_inheritable(fd, False)
    ranks = {}
    for rank, spec in enumerate(specs):
        try:
            pid = start(spec, command, environ)
        except (OSError, ValueError) as error:
            report({"rank": rank, "error": getattr(error, "strerror", None) or str(error)})
            break
        ranks[pid] = rank
        report({"rank": rank, "pid": pid})
    for fd in {fd for spec in specs for fd in spec["fds"]}:
        os.close(fd)
    return ranks


def start(spec: "dict[str, Any]", command: "list[bytes]", environ: "dict[bytes, bytes]") -> int:
    """Start one rank in a process group of its own, its stdin, stdout and stderr as given; return its PID."""
    whole = {**environ, **variables_of(spec["variables"])}
    path, argv = bytes_of(spec["path"]), [*map(bytes_of, spec["before"]), *command]
    options: dict[str, Any] = {
        "file_actions": [(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate(spec["fds"])],
        "setpgroup": 0,
        "setsigdef": IGNORED_BY_PYTHON,
    }
    try:
        return os.posix_spawn(path, argv, whole, **options)
    except OSError as error:
        if error.errno != errno.ENOEXEC:  # a script without #!, which execvp(3) gives to the shell
            raise
        return os.posix_spawn(b"/bin/sh", [b"/bin/sh", path, *argv[1:]], whole, **options)


def variables_of(texts: "dict[str, str]") -> "dict[bytes, bytes]":
    return {bytes_of(name): bytes_of(value) for name, value in texts.items()}


def bytes_of(text: str) -> bytes:
    return text.encode("latin-1")


def report(fact: "dict[str, Any]") -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(REPORT, json.dumps(fact).encode() + b"\n")


def keep(ranks: "dict[int, int]", lines: Lines, waker: int) -> None:
    """Do what the launcher says and tell it of every end, until no process is left; end them all where it is gone."""
    poll = select.poll()
    poll.register(lines.fd, select.POLLIN)
    poll.register(waker, select.POLLIN)
    groups = list(ranks)
    has_told = False
    while True:
        for line in lines.waiting:
            word, _, number = line.decode().partition(" ")
            if word == "signal":
                send(ranks, groups, int(number))
            else:
                kill_all(ranks, groups)
        lines.waiting.clear()
        if lines.ended:
            kill_all(ranks, groups)
            return
        any_left = reap(ranks)
        if not any_left:
            return
        left = 0 if ranks else len(descendants()) if is_own_proc() else 1
        if left and not has_told:
            has_told = True
            report({"left": left})
        ready = {fd for fd, _ in poll.poll()}
        if waker in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(waker, 4096)
        if lines.fd in ready:
            lines.read()


def reap(ranks: "dict[int, int]") -> bool:
    """Report the ranks that have ended, and return whether any child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not pid:
            return True
        if pid in ranks:
            report({"rank": ranks.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def send(ranks: "dict[int, int]", groups: "list[int]", number: int) -> None:
    """Signal the process groups of the ranks that run, or where none does each process that they have left."""
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != pid:  # it has joined another group
                os.kill(pid, number)
    if not ranks:
        send_to_left(descendants(), groups, number)


def send_to_left(left: "list[int]", groups: "list[int]", number: int) -> None:
    """Signal what ranks have left; where /proc does not show that, the process groups that they had."""
    send_each(left if is_own_proc() else [-group for group in groups], number)


def send_each(pids: "list[int]", number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_all(ranks: "dict[int, int]", groups: "list[int]") -> None:
    """Kill every descendant, and those that they start meanwhile, until none is left."""
    while reap(ranks):
        send_to_left(descendants(), groups, signal.SIGKILL)
        select.poll().poll(PAUSE_MS)


def kill_adopted(spared: "list[int]", groups: "list[int]", within_s: float) -> "list[int]":
    """Kill this process's descendants but for children that are `spared`; return the PIDs of those that do not end."""
    until = time.monotonic() + within_s
    send_to_left([], groups, signal.SIGKILL)
    while (left := descendants(spared)) and time.monotonic() < until:
        send_each(left, signal.SIGKILL)
        select.poll().poll(PAUSE_MS)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return left


def descendants(spared: "list[int] | tuple[()]" = ()) -> "list[int]":
    """Return the PIDs of this process's children, theirs, and so on; none of those of `spared` children.

    None at all where /proc is not this PID namespace's.
    """
    children: dict[int, list[int]] = {}
    if not is_own_proc():
        return []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as stat:
                    # "7 (name) S 1 …", in which the name may hold anything
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = [pid for pid in children.get(os.getpid(), ()) if pid not in spared]
    for pid in found:
        found += children.get(pid, ())
    return found


def is_own_proc() -> bool:
    """Return whether /proc shows this PID namespace."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


if __name__ == "__main__":
    main()
