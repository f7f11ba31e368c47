"""The one owner of multiprocessing's spawn executable and of our variables in the environment.

Example: ``spawner.enter(swap)`` … ``spawner.leave(swap)`` around what a block starts.
"""

import os
import sys
import threading
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from multiprocessing import process, resource_tracker, spawn
from typing import Any, NamedTuple

from numa_launch.machine.handover import VARIABLE

WRAPPER_VARIABLES = (
    "NUMA_LAUNCH_WRAP_PYTHON",
    "NUMA_LAUNCH_WRAP_PROGRAM",
    "NUMA_LAUNCH_WRAP_SCRIPT",
    "NUMA_LAUNCH_WRAP_ARGS",
)
COUNT_VARIABLE = "NUMA_LAUNCH_WRAP_ENV"

Executable = str | bytes | None


class Started(NamedTuple):
    """A multiprocessing child that was started while a block was open, by which thread and by which start method."""

    process: Any
    thread: int
    method: str

    def end(self) -> None:
        """Terminate it, unless it has ended and was joined or closed."""
        if self.process in process._children:  # type: ignore[attr-defined]
            self.process.terminate()


class Swap:
    """What a block sets: the spawn executable and our variables; and the children that were started meanwhile."""

    def __init__(self, executable: Executable, variables: Mapping[str, str]) -> None:
        self.executable = executable
        self.variables = variables
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.started: list[Started] = []
        self.fork_server: int | None = None


class Children(set[Any]):
    """multiprocessing's set of living children, which also tells open blocks of each one started, and by which thread.

    Looking at the set on the way out alone would miss those that were joined inside. Once in place it stays: putting a
    plain set back could lose a child that another thread starts meanwhile.
    """

    def add(self, child: Any) -> None:
        super().add(child)
        method = getattr(child._popen, "method", "spawn")
        for swap in spawner.open:
            swap.started.append(Started(child, threading.get_ident(), method))


class Spawner:
    """Blocks of different threads wait for each other; those of one thread nest: the youngest open one is in force.

    What was there before them is put back after the last, in whichever order they end.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.base: Swap | None = None
        self.open: list[Swap] = []

    def is_held_here(self) -> bool:
        """Return whether a block of the calling thread is open, bound or not."""
        return self.lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def python(self) -> Executable:
        """Return the Python that multiprocessing would start without us."""
        return self.base.executable if self.base else spawn.get_executable()

    def plain(self) -> Swap:
        """Return the swap of a block that stays unbound inside others."""
        base = self.base or Swap(self.python(), ours_now())
        return Swap(base.executable, base.variables)

    def own_variable(self, name: str) -> str | None:
        """Return a variable of this process itself, not what a block has set for its child."""
        return self.base.variables.get(name) if self.base else os.environ.get(name)

    def enter(self, swap: Swap) -> None:
        """Put the block's executable and variables in force."""
        if not self.base:
            if swap.executable is not None:
                # Started by the first worker otherwise, through the wrapper: it would stay on its node for life.
                resource_tracker.ensure_running()
            self.base = Swap(self.python(), ours_now())
        if not isinstance(process._children, Children):  # type: ignore[attr-defined]
            process._children = Children(process._children)  # type: ignore[attr-defined]
        swap.fork_server = fork_server()
        self.open.append(swap)
        put(swap, self.open)

    def leave(self, swap: Swap) -> None:
        """End the block; called again after an interrupt, it goes on where it was."""
        if not self.base:  # a child forked inside the block, whose copy was reset
            return
        before = list(self.open)
        self.open = [other for other in self.open if other is not swap]
        put(self.open[-1] if self.open else self.base, [*before, swap])
        if not self.open:
            self.base = None

    def reset_in_child(self) -> None:
        """Undo everything in a forked child: it must not keep the wrapper as its own spawn executable."""
        self.lock = threading.RLock()
        if self.base:
            put(self.base, self.open)
        self.base, self.open = None, []


def put(swap: Swap, replaced: Iterable[Swap]) -> None:
    """Set the swap's executable and variables, and unset those of the swaps it takes the place of."""
    spawn.set_executable(swap.executable)  # type: ignore[arg-type]
    for name in {VARIABLE, *(name for other in replaced for name in other.variables)} - swap.variables.keys():
        os.environ.pop(name, None)
    os.environ.update(swap.variables)


def ours_now() -> dict[str, str]:
    """Return our variables as they are in the environment."""
    return {name: os.environ[name] for name in (*WRAPPER_VARIABLES, COUNT_VARIABLE, VARIABLE) if name in os.environ}


def fork_server() -> int | None:
    """Return the PID of multiprocessing's fork server, None where none was started."""
    module = sys.modules.get("multiprocessing.forkserver")
    return module._forkserver._forkserver_pid if module else None


spawner = Spawner()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=spawner.reset_in_child)

blocks_here: ContextVar[tuple[Swap, ...]] = ContextVar("numa_launch_blocks", default=())
"""The blocks that this task has open, where a thread runs several tasks."""


def another_task_has_a_block() -> bool:
    """Return whether a block of this thread is open that is not around the caller: two coroutines overlap."""
    return any(swap not in blocks_here.get() for swap in spawner.open)
