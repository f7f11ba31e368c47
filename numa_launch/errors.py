"""The errors that numa-launch raises, each with the exit status the command line gives it.

Example: a ConfigError ends ``numa-launch`` with 2, and its text is what stands behind ``Error: ``.
"""

from typing import TypeVar

from numa_launch.reasons import Note

E = TypeVar("E", bound="NumaLaunchError")


class NumaLaunchError(Exception):
    """Any error of ours; its text is one whole sentence for the user, and `note` its reason, where it has one."""

    exit_status = 2
    note: Note | None = None

    @classmethod
    def of(cls: type[E], note: Note) -> E:
        """Return the error that a reason is in this case."""
        error = cls(note.message)
        error.note = note
        return error


class ConfigError(NumaLaunchError, ValueError):
    """What was asked for is malformed, or cannot be planned on this machine."""


class MachineError(NumaLaunchError):
    """The root directory holds no machine, or a file that says what the GPUs are is broken."""


class StrictError(NumaLaunchError, RuntimeError):
    """``strict`` was asked for and a process could not be bound as planned."""

    exit_status = 1


class PlatformError(NumaLaunchError, OSError):
    """Binding was asked for on a system other than Linux."""


class StatusError(NumaLaunchError):
    """An error whose exit status is another each time."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class CommandError(StatusError):
    """COMMAND is not there (127) or may not be executed (126), as a shell reports it."""


class RanksError(StatusError):
    """A rank failed, or ranks could not be started or ended; the exit status is that of the first failure."""
