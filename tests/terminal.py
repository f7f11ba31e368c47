"""Run a command in a terminal of its own, as wide as asked for.

Example: ``in_terminal(["numa-launch", "topo"], 80, {"TERM": "xterm"})`` is its exit status and what it printed there.
"""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
from collections.abc import Mapping, Sequence

TIME_LIMIT_S = 60
"""For which the command may print nothing."""


def in_terminal(command: Sequence[str], columns: int, environ: Mapping[str, str]) -> tuple[int, bytes]:
    """Return the exit status and all that the command wrote to a terminal, stderr included."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    actions = [(os.POSIX_SPAWN_DUP2, follower, fd) for fd in (0, 1, 2)]
    pid = os.posix_spawnp(command[0], list(command), dict(environ), file_actions=actions)
    os.close(follower)
    shown = bytearray()
    while select.select([leader], [], [], TIME_LIMIT_S)[0]:
        try:
            shown += os.read(leader, 65536)
        except OSError:  # the terminal's last user has ended
            break
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(leader)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), bytes(shown).replace(b"\r\n", b"\n")
