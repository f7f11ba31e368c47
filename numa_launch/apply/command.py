"""Find programs on PATH, and become COMMAND.

Example: ``become(check_command("python", environ), ["python", "worker.py"], environ)`` does not return.
"""

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from numa_launch.errors import CommandError
from numa_launch.machine.files import read_text


def on_path(name: str, environ: Mapping[str, str]) -> list[str]:
    """Return the files that `name` may mean, in the order a shell tries them."""
    if "/" in name:
        return [name]
    directories = environ.get("PATH", os.defpath).split(os.pathsep)
    return [os.path.join(directory or ".", name) for directory in directories]


def is_executable(path: str) -> bool:
    """Return whether the file may be executed: its run bit is set, and its mount is not noexec."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def find_numactl(environ: Mapping[str, str]) -> str | None:
    """Return the absolute path of numactl, None where PATH has none."""
    return next((os.path.abspath(path) for path in on_path("numactl", environ) if is_executable(path)), None)


def check_command(name: str, environ: Mapping[str, str]) -> str:
    """Return the file that will be executed; raises CommandError with a shell's 127 (not there) or 126 (not ours)."""
    files = on_path(name, environ) if name else []
    for path in files:
        if is_executable(path):
            check_interpreter(name, path)
            return path
    for path in files:
        if os.path.isdir(path) and "/" in name:
            raise CommandError(f"{name}: it is a directory, not a command", 126)
        if os.path.lexists(path) and not os.path.isdir(path):
            raise CommandError(f"{path} may not be executed (no run bit, or a noexec mount)", 126)
    raise CommandError(f"{name or repr(name)}: command not found", 127)


def check_interpreter(name: str, path: str) -> None:
    """Raise CommandError where a script's ``#!`` names no program: numactl would end with 1, a shell with 127."""
    first, _, _ = (read_text(path, most=256) or "").partition("\n")
    words = first.removeprefix("#!").split()
    if first.startswith("#!") and words and not is_executable(words[0]):
        raise CommandError(f"{name}: its interpreter {words[0]} is not there or may not be executed", 127)


def become(
    path: str,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    backend: Sequence[str] = (),
) -> NoReturn:
    """Replace this process with COMMAND, under a backend where one is given; raises CommandError where it fails.

    `path` is the file that check_command found for it; `backend` is the backend's command line with its arguments.

    Python ignores SIGPIPE and SIGXFSZ, which COMMAND must not inherit.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream:  # None where the descriptor was closed, as a daemon's may be
            stream.flush()
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        if backend:
            os.execve(backend[0], [*backend, "--", *command], dict(environ))
        os.execve(path, list(command), dict(environ))
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without #!, which execvp(3) gives to the shell
            os.execve("/bin/sh", ["/bin/sh", path, *command[1:]], dict(environ))
        raise CommandError(f"{command[0]}: {error.strerror}", 126) from None


def own_environment() -> dict[str, str]:
    """Return the environment this process was started with, its LC_CTYPE not as Python sets it in the C locale.

    An entry without a name is left out, as Python can start nothing with it.
    """
    environ = {name: value for name, value in os.environ.items() if name}
    started_with = read_text("/proc/self/environ")
    if started_with is not None and "LC_CTYPE" in environ:
        given = [value for value in started_with.split("\0") if value.startswith("LC_CTYPE=")]
        del environ["LC_CTYPE"]
        if given:
            environ["LC_CTYPE"] = given[0].removeprefix("LC_CTYPE=")
    return environ
