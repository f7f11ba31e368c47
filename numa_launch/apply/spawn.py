"""``configure_subprocess``: the workers that multiprocessing spawns inside the block start under numactl.

Example::

    with configure_subprocess(LaunchConfig(tensor_parallel_size=8), rank):
        multiprocessing.get_context("spawn").Process(target=worker).start()

It swaps multiprocessing's spawn executable for ``wrapper.sh`` and sets that script's variables (``swap``), and puts
both back whatever happens inside.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, NamedTuple

from numa_launch.apply.asked import check_process, what_switches_off
from numa_launch.apply.backend import choose
from numa_launch.apply.command import find_numactl, is_executable
from numa_launch.apply.detect import Detected, carried, detect, variables_now
from numa_launch.apply.outcome import applied, handover_variable, numactl_needed, report, skipped, switched_off, unbound
from numa_launch.apply.probe import Prober
from numa_launch.apply.swap import (
    COUNT_VARIABLE,
    WRAPPER_VARIABLES,
    Executable,
    Swap,
    another_task_has_a_block,
    blocks_here,
    fork_server,
    spawner,
)
from numa_launch.config import BackendChoice, LaunchConfig, launch_config
from numa_launch.errors import ConfigError, StrictError
from numa_launch.log import say_once
from numa_launch.machine.handover import VARIABLE
from numa_launch.machine.model import Machine
from numa_launch.machine.read import require_linux
from numa_launch.plan.decide import plan
from numa_launch.plan.model import Binding, Circumstances, Kind, Plan, Process
from numa_launch.reasons import Note, note

WRAPPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wrapper.sh")
SHELL = "/bin/sh"
"""What runs the wrapper."""

_prober = Prober()


@contextmanager
def configure_subprocess(
    config: Any,
    local_rank: int,
    dp_local_rank: int | None = None,
    process_kind: Kind = "worker",
    *,
    context: Any = None,
    backend: BackendChoice | None = None,
) -> Iterator[Binding]:
    """Bind the processes that multiprocessing spawns inside the block, as worker `local_rank` (or as EngineCore).

    `config` is a LaunchConfig, or any object with a `parallel_config` of the same names (but `backend`).
    `dp_local_rank` is the shard on this host (None: the config's). `context` is the multiprocessing context the block
    uses (or its start method); without one, spawn is assumed and a child that was started otherwise is warned about on
    the way out. `backend` (None: the config's) is what binds: numactl, builtin, or auto, which is numactl where it is
    on PATH. Yields the Binding in force: without CPUs, and with its reasons, where the process stays unbound.

    Blocks of several threads wait for each other. Blocks of coroutines must not overlap, as a block cannot tell whose
    child is being started: where they do, both stay unbound and that is said.

    Raises ConfigError for what cannot be planned and for explicit binding without any backend, and, under
    `config.strict`, StrictError where a process would be less bound than planned; a child already started by fork or
    forkserver is terminated then. Nothing else is raised, and never over an exception of the block's own.
    """
    require_linux()
    check_process(local_rank, dp_local_rank, process_kind)
    with spawner.lock:
        start = prepare(config, Process(process_kind, local_rank, dp_local_rank), context, backend)
        with carried(config, start.detected), in_force(start.swap):
            yield start.binding
        if start.swap and start.swap.pid == os.getpid():
            judge(start.swap, start.strict)


class Start(NamedTuple):
    """What a block starts with: the binding in force, what to swap for it, and what it was planned from."""

    binding: Binding
    swap: Swap | None = None
    detected: Detected | None = None
    strict: bool = False


@contextmanager
def in_force(swap: Swap | None) -> Iterator[None]:
    """Swap while the block lasts, and put back whatever happens, an interrupt while doing so included.

    None stays unbound: nothing is to be done for it but inside another block.
    """
    if swap is None and not spawner.base:
        yield
        return
    swap = swap or spawner.plain()
    around = blocks_here.get()
    try:
        spawner.enter(swap)
        blocks_here.set((*around, swap))
        yield
    finally:
        interrupt = None
        while True:
            try:
                spawner.leave(swap)
                blocks_here.set(around)
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt:
            raise interrupt


def prepare(config: Any, process: Process, context: Any, backend_choice: BackendChoice | None = None) -> Start:
    """Return what to start with: no swap where the process stays unbound."""
    off = what_switches_off(config, os.environ)
    if off:
        return Start(switched_off(process, off))
    launch = launch_config(config)
    if backend_choice is not None:
        launch = replace(launch, backend=backend_choice)
    backend = choose(launch.backend, numactl_now, sys.executable)
    circumstances = Circumstances(start_method_of(context), numactl_missing=backend is None)
    detected = detect(config, own_variables())
    made = _planner.plan(detected.machine, launch, process, circumstances)
    binding = made.processes[0]
    if not binding.bound:
        return Start(skipped(made), None, detected)
    obstacle = cannot_wrap(circumstances, process, spawner.python())
    if obstacle:
        if launch.strict:
            raise StrictError(obstacle.message)
        say_once(logging.WARNING, obstacle.message)
        return Start(unbound(binding, obstacle), None, detected)
    if backend is None:
        raise numactl_needed()
    found = _prober.arguments(backend, binding, auto=made.mode == "auto", strict=launch.strict)
    if not found.args:
        return Start(unbound(binding, found.dropped), None, detected)
    left = applied(binding, found)
    values = (os.fsdecode(spawner.python() or ""), backend.program, backend.script, " ".join(found.args))
    variables = {
        **dict(zip(WRAPPER_VARIABLES, values, strict=True)),
        **odd_variables(backend.program),
        **handover_variable(detected.machine, left),
    }
    return Start(left, Swap(WRAPPER, variables), detected, launch.strict)


class Planner:
    """Makes the plan for one process, and keeps those made for the latest machine: a block is entered once a worker."""

    def __init__(self) -> None:
        self._machine: Machine | None = None
        self._plans: dict[object, Plan] = {}

    def plan(self, machine: Machine, launch: LaunchConfig, process: Process, circumstances: Circumstances) -> Plan:
        """Return the plan, and log what is to be said of it."""
        if machine is not self._machine:
            self._machine, self._plans = machine, {}
        values = (getattr(launch, name) for name in FIELDS)
        key = (process, circumstances, *(tuple(value) if isinstance(value, list) else value for value in values))
        if key not in self._plans:
            self._plans[key] = plan(machine, launch, processes=[process], circumstances=circumstances)
        report(self._plans[key])
        return self._plans[key]


FIELDS = tuple(field.name for field in fields(LaunchConfig))

_planner = Planner()


def own_variables() -> dict[str, str]:
    """Return what a detection depends on: of this process itself, not what an open block has set for its child."""
    variables = variables_now()
    variables.pop(VARIABLE, None)
    own = spawner.own_variable(VARIABLE)
    return variables if own is None else {**variables, VARIABLE: own}


_SHELL_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")


LONGEST_VARIABLE = 120_000
"""The kernel takes no string of 128 KiB or more in an environment (MAX_ARG_STRLEN), ours before the name included."""


def odd_variables(program: str) -> dict[str, str]:
    """Return the variables that hand those to the wrapper whose names are no identifiers, which ``sh`` would drop.

    None where the wrapper's ``env`` would take the backend's path for a variable too.
    """
    odd = [os.fsdecode(name) for name in os.environb if not _SHELL_NAME.fullmatch(name)]
    texts = [f"{name}={os.environ[name]}" for name in odd if len(os.environ[name]) < LONGEST_VARIABLE]
    if not texts or "=" in program:
        return {}
    return {COUNT_VARIABLE: str(len(texts)), **{f"{COUNT_VARIABLE}_{i}": text for i, text in enumerate(texts, 1)}}


def start_method_of(context: Any) -> str:
    """Return the start method of a multiprocessing context, spawn for none, without fixing the user's default."""
    if context is None:
        return "spawn"
    import multiprocessing

    methods = multiprocessing.get_all_start_methods()
    if isinstance(context, str) and context in methods:
        return context
    if not hasattr(context, "get_start_method"):
        raise ConfigError(f"context: {context!r} must be a multiprocessing context, or one of {', '.join(methods)}")
    return str(context.get_start_method(allow_none=True) or methods[0])


_numactl_of_path: dict[str | None, str] = {}


def numactl_now() -> str | None:
    """Return numactl's path on this PATH, remembered while it is there."""
    path = os.environ.get("PATH")
    if path not in _numactl_of_path or not is_executable(_numactl_of_path[path]):
        _numactl_of_path.pop(path, None)
        found = find_numactl(os.environ)
        if found:
            _numactl_of_path[path] = found
    return _numactl_of_path.get(path)


def cannot_wrap(circumstances: Circumstances, process: Process, python: Executable) -> Note | None:
    """Return why the wrapper cannot bind this process, found before the start: its child would just exit with 255."""
    if circumstances.start_method != "spawn":
        name = Binding(process.kind, process.local_rank, process.dp_local_rank or 0).name
        return note("start-method", what=f"{name} is", method=circumstances.start_method)
    if another_task_has_a_block():
        return note("blocks-overlap")
    return wrapper_problem(python)


def wrapper_problem(python: Executable) -> Note | None:
    """Return why the wrapper cannot be executed, None where it can."""
    if not python:
        fix = "call multiprocessing.set_executable with the path of a Python first"
        return note("wrapper-not-executable", path="an embedded Python without sys.executable", fix=fix)
    for path, fix in (
        (WRAPPER, f"chmod +x {WRAPPER}, or install numa-launch on a file system that is not mounted noexec"),
        (SHELL, "put a POSIX shell there, as the wrapper needs one"),
    ):
        if not is_executable(path):
            return note("wrapper-not-executable", path=path, fix=fix)
    return shell_problem()


def shell_problem() -> Note | None:
    """Return why the shell does not survive the environment that is set for the worker, None where it does."""
    problem = problem_of_shell()
    if not problem:
        return None
    preload = os.environ.get("LD_PRELOAD")
    cause = f"LD_PRELOAD={preload}" if preload else "something in the environment"
    fix = f"{cause} ends it ({problem}): set that inside the worker instead"
    return note("wrapper-not-executable", path=SHELL, fix=fix)


def problem_of_shell() -> str | None:
    """Return how the shell ends where it does not run a command, tried once."""
    return _prober.outcome([SHELL, "-c", '"$@"', "sh", "true"], None).problem


def judge(swap: Swap, strict: bool) -> None:
    """Warn of children that could not be bound, as they were not spawned or not started inside the block.

    Children that another thread started meanwhile are its own affair.
    """
    if not swap.started:
        say_once(logging.WARNING, note("nothing-started").message)
    own = [started for started in swap.started if started.thread == swap.thread and started.method != "spawn"]
    said = [note("start-method", what=f"{child.process.name} was", method=child.method).message for child in own]
    if fork_server() != swap.fork_server:
        said.append(note("fork-server").message)
    if strict and said:
        for child in own:
            child.end()
        raise StrictError(said[0])
    for message in said:
        say_once(logging.WARNING, message)
