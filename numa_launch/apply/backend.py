"""What puts a binding's arguments in force: numactl, or a Python that runs the built-in backend where it is not there.

Example: ``find_backend("auto", os.environ, sys.executable).command == ["/usr/bin/numactl"]``.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from numa_launch.apply.command import find_numactl, is_executable
from numa_launch.config import BackendChoice

BUILTIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "builtin.py")

FLAGS = ("-I", "-S", "-X", "utf8")
"""As the wrapper has them: nothing of the user's is imported, and arguments pass through byte by byte."""


PROOF = "numa-launch: it runs"
"""What a probe prints where its exit status is not enough."""


class Backend(NamedTuple):
    """A program that takes a binding's arguments and then becomes a command: numactl, or a Python with a `script`."""

    program: str
    script: str = ""

    @property
    def command(self) -> list[str]:
        """What stands before the arguments."""
        return [self.program, *FLAGS, self.script] if self.script else [self.program]

    def probe(self, args: Sequence[str]) -> list[str]:
        """Return the command that tries the arguments: an image without numactl may have no ``true`` either."""
        if self.script:
            return [*self.command, *args, "--", self.program, "-I", "-S", "-c", f"print({PROOF!r})"]
        return [*self.command, *args, "true"]

    @property
    def name(self) -> str:
        return "built-in backend" if self.script else "numactl"


def find_backend(choice: BackendChoice, environ: Mapping[str, str], python: str | None) -> Backend | None:
    """Return the backend that is to be used: for auto numactl where it is on PATH; None where none may serve."""
    numactl = find_numactl(environ) if choice != "builtin" else None
    if numactl:
        return Backend(numactl)
    return builtin_backend(python) if choice != "numactl" else None


def builtin_backend(python: str | None) -> Backend | None:
    """Return the built-in backend; None for a frozen or embedded program, which has no Python to run it with."""
    if not python or getattr(sys, "frozen", False) or not is_executable(python) or not os.path.isfile(BUILTIN):
        return None
    return Backend(python, BUILTIN)
