"""The logger ``numa_launch``, and notes that are said once in a process.

Example: ``say_once(logging.WARNING, "memory is not bound …")`` logs the first time and is silent after.
"""

import os

LOGGER = "numa_launch"

_said: set[tuple[int, str]] = set()


def say_once(level: int, message: str) -> None:
    """Log the message unless this process has logged the same already; a forked child is another process."""
    import logging

    key = (os.getpid(), message)
    if key not in _said:
        _said.add(key)
        logging.getLogger(LOGGER).log(level, "%s", message)
