"""What this process found out about its host, kept on the config.

Example: ``detect(config)`` reads the machine once; later calls, and the child that gets the pickled config, reuse it.
"""

import os
from dataclasses import is_dataclass, replace
from typing import Any, NamedTuple

from numa_launch.config import LaunchConfig
from numa_launch.machine.handover import VARIABLE
from numa_launch.machine.limits import current_affinity, read_limits
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from numa_launch.machine.visible import VARIABLES

KEPT = "_numa_launch_detected"


class State(NamedTuple):
    """What a detection depends on: the process, its affinity, and the variables that were read."""

    pid: int
    affinity: frozenset[int] | None
    variables: tuple[str | None, ...]


class Detected(NamedTuple):
    state: State
    machine: Machine


_latest: Detected | None = None


def detect(config: Any) -> Machine:
    """Return the machine, read anew only where this process has changed since it last read it.

    A child reuses its parent's nodes and GPUs, also where it sees fewer GPUs itself, but what it may use is its own.
    """
    global _latest
    state = State(os.getpid(), current_affinity(), tuple(os.environ.get(name) for name in (*VARIABLES, VARIABLE)))
    holder = holder_of(config)
    kept: Detected | None = getattr(holder, KEPT, None)
    for known in (kept, _latest):
        if known and known.state == state:
            return known.machine
    if kept and kept.state.pid != state.pid:
        machine = replace(kept.machine, limits=read_limits("", kept.machine.online, os.environ))
    else:
        machine = read_machine()
    _latest = Detected(state, machine)
    if holder is not None:
        object.__setattr__(holder, KEPT, _latest)
    return machine


def holder_of(config: Any) -> Any:
    """Return the object to keep it on, None where an attribute would show: only a dataclass ignores those it lacks."""
    if isinstance(config, LaunchConfig):
        return config
    theirs = getattr(config, "parallel_config", None)
    return theirs if is_dataclass(theirs) and hasattr(theirs, "__dict__") else None
