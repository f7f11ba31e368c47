"""What puts a binding's arguments in force: numactl, or a Python that runs the built-in backend where it is not there.

Example: ``choose("auto", lambda: "/usr/bin/numactl", sys.executable).command == ["/usr/bin/numactl"]``.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from numa_launch.apply.command import is_executable
from numa_launch.config import BackendChoice

BUILTIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "builtin.py")

FLAGS = ("-I", "-S", "-X", "utf8")
"""As the wrapper has them: nothing of the user's is imported, and arguments pass through byte by byte."""

PROOF = "numa-launch: it runs"
"""What a probe prints: the built-in backend's always, numactl's where its exit status cannot be had."""


class Backend(NamedTuple):
    """A program that takes a binding's arguments and then becomes a command: numactl, or a Python with a `script`."""

    program: str
    script: str = ""

    @property
    def is_builtin(self) -> bool:
        return bool(self.script)

    @property
    def command(self) -> list[str]:
        """What stands before the arguments."""
        return [self.program, *FLAGS, self.script] if self.is_builtin else [self.program]

    def probe(self, args: Sequence[str]) -> list[str]:
        """Return the command that tries the arguments: an image without numactl may have no ``true`` either."""
        if self.is_builtin:
            return [*self.command, *args, "--", self.program, *FLAGS, "-c", f"print({PROOF!r})"]
        return [*self.command, *args, "true"]

    @property
    def name(self) -> str:
        return "the built-in backend" if self.is_builtin else "numactl"


def choose(
    choice: BackendChoice, find_numactl: Callable[[], str | None], python: str | bytes | os.PathLike[str] | None
) -> Backend | None:
    """Return the backend that is to be used: for auto numactl where there is one; None where none may serve."""
    numactl = find_numactl() if choice != "builtin" else None
    if numactl:
        return Backend(numactl)
    return builtin_backend(os.fsdecode(python or "")) if choice != "numactl" else None


def builtin_backend(python: str) -> Backend | None:
    """Return the built-in backend; None for a frozen or embedded program, which has no Python to run it with."""
    if not python or getattr(sys, "frozen", False) or not is_executable(python) or not os.path.isfile(BUILTIN):
        return None
    return Backend(python, BUILTIN)
