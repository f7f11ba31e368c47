"""``configure_subprocess``: the workers that multiprocessing spawns inside the block start under numactl.

Example::

    with configure_subprocess(LaunchConfig(tensor_parallel_size=8), rank):
        multiprocessing.get_context("spawn").Process(target=worker).start()

It swaps multiprocessing's spawn executable for ``wrapper.sh`` and sets that script's variables, and puts both back
whatever happens inside. FACTS.md section 2 has the traps that the code below steps around.
"""

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from numa_launch.apply.command import find_numactl, is_executable
from numa_launch.apply.detect import detect
from numa_launch.apply.outcome import applied, handover_variable, numactl_needed, report, unbound
from numa_launch.apply.probe import Prober
from numa_launch.config import LaunchConfig, is_count, launch_config
from numa_launch.errors import ConfigError, StrictError
from numa_launch.log import say_once
from numa_launch.machine.handover import VARIABLE
from numa_launch.machine.model import Note
from numa_launch.machine.read import require_linux
from numa_launch.plan.decide import plan
from numa_launch.plan.model import Binding, Circumstances, Kind, Process
from numa_launch.plan.reasons import warning

WRAPPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wrapper.sh")
WRAPPER_VARIABLES = ("NUMA_LAUNCH_WRAP_PYTHON", "NUMA_LAUNCH_WRAP_NUMACTL", "NUMA_LAUNCH_WRAP_ARGS")

Executable = str | bytes | None


@dataclass
class Swap:
    """What a block sets: the spawn executable, and our variables (those it lacks are unset)."""

    executable: Executable
    variables: Mapping[str, str]
    children: set[Any] = field(default_factory=set)


class Spawner:
    """The one owner of multiprocessing's spawn executable and of our variables in the environment.

    Blocks of different threads wait for each other; those of one thread may nest, and may end in any order (two
    coroutines): what the youngest open block set is in force, and what was there before them after the last.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.base: Swap | None = None
        self.open: list[Swap] = []

    def python(self) -> Executable:
        """Return the Python that multiprocessing would start without us."""
        from multiprocessing import spawn

        return self.base.executable if self.base else spawn.get_executable()

    def enter(self, swap: Swap) -> None:
        from multiprocessing import process, resource_tracker, spawn

        if not self.base:
            # Started by the first worker otherwise, through the wrapper: it would stay on that worker's node for life.
            resource_tracker.ensure_running()
            names = (*WRAPPER_VARIABLES, VARIABLE)
            self.base = Swap(spawn.get_executable(), {name: os.environ[name] for name in names if name in os.environ})
        swap.children = set(process._children)  # type: ignore[attr-defined]
        self.open.append(swap)
        put(swap)

    def leave(self, swap: Swap) -> None:
        if not self.base:  # a child forked inside the block, whose copy was reset
            return
        self.open.remove(swap)
        put(self.open[-1] if self.open else self.base)
        if not self.open:
            self.base = None

    def reset_in_child(self) -> None:
        """Undo everything in a forked child: it must not keep the wrapper as its own spawn executable."""
        self.lock = threading.RLock()
        if self.base:
            put(self.base)
        self.base, self.open = None, []


def put(swap: Swap) -> None:
    from multiprocessing import spawn

    spawn.set_executable(swap.executable)  # type: ignore[arg-type]
    for name in (*WRAPPER_VARIABLES, VARIABLE):
        if name in swap.variables:
            os.environ[name] = swap.variables[name]
        else:
            os.environ.pop(name, None)


_spawner = Spawner()
_prober = Prober()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_spawner.reset_in_child)


@contextmanager
def configure_subprocess(
    config: Any,
    local_rank: int,
    dp_local_rank: int | None = None,
    process_kind: Kind = "worker",
    *,
    context: Any = None,
) -> Iterator[Binding]:
    """Bind the processes that multiprocessing spawns inside the block, as worker `local_rank` (or as EngineCore).

    `config` is a LaunchConfig, or any object with a `parallel_config` of the same names. `dp_local_rank` is the shard
    on this host (None: the config's). `context` is the multiprocessing context the block uses; without one, spawn is
    assumed and a child that was started otherwise is warned about on the way out. Yields the Binding in force:
    without CPUs, and with its reasons, where the process stays unbound.

    Raises ConfigError for what cannot be planned and for explicit binding without numactl, and, under
    `config.strict`, StrictError where a process would be less bound than planned; a child already started by fork or
    forkserver is terminated then. Nothing else is raised, and never over an exception of the block's own.
    """
    require_linux()
    launch = launch_config(config)
    check_process(local_rank, dp_local_rank, process_kind)
    with _spawner.lock:
        numactl = numactl_now()
        circumstances = Circumstances(start_method_of(context), numactl is None, switched_off(os.environ))
        process = Process(process_kind, local_rank, dp_local_rank)
        binding, swap = prepare(config, launch, process, circumstances, numactl)
        _spawner.enter(swap)
        try:
            yield binding
        except BaseException:
            _spawner.leave(swap)
            raise
        started = started_since(swap)
        _spawner.leave(swap)
        if binding.bound:
            judge(started, launch.strict)


def prepare(
    config: Any, launch: LaunchConfig, process: Process, circumstances: Circumstances, numactl: str | None
) -> tuple[Binding, Swap]:
    """Return the binding in force and what to swap for it: nothing where the process stays unbound."""
    python = _spawner.python()
    plain = Swap(python, _spawner.base.variables if _spawner.base else variables_now())
    machine = detect(config)
    made = plan(machine, launch, processes=[process], circumstances=circumstances)
    binding = made.processes[0]
    report(made)
    if not binding.bound:
        return binding, plain
    obstacle = cannot_wrap(circumstances, process, python)
    if obstacle:
        if launch.strict:
            raise StrictError(obstacle.message)
        say_once(logging.WARNING, obstacle.message)
        return unbound(binding, obstacle), plain
    if numactl is None:
        raise numactl_needed()
    found = _prober.arguments(numactl, binding, auto=made.mode == "auto", strict=launch.strict)
    if not found.args:
        return unbound(binding, found.dropped), plain
    in_force = applied(binding, found)
    values = (os.fsdecode(python or ""), numactl, " ".join(found.args))
    variables = dict(zip(WRAPPER_VARIABLES, values, strict=True))
    return in_force, Swap(WRAPPER, {**variables, **handover_variable(machine, in_force)})


def check_process(local_rank: object, dp_local_rank: object, process_kind: object) -> None:
    if not is_count(local_rank):
        raise ConfigError(f"local_rank: {local_rank!r} must be a number from 0 on")
    if dp_local_rank is not None and not is_count(dp_local_rank):
        raise ConfigError(f"dp_local_rank: {dp_local_rank!r} must be a number from 0 on, or None")
    if process_kind not in ("worker", "EngineCore"):
        raise ConfigError(f"process_kind: {process_kind!r} must be 'worker' or 'EngineCore'")


def start_method_of(context: Any) -> str:
    """Return the start method of a multiprocessing context, spawn for none, without fixing the user's default."""
    if context is None:
        return "spawn"
    import multiprocessing

    method = context.get_start_method(allow_none=True)
    return str(method or multiprocessing.get_all_start_methods()[0])


def switched_off(environ: Mapping[str, str]) -> str | None:
    """Return what switches a whole fleet off, None where nothing does."""
    value = environ.get("NUMA_LAUNCH_BIND", "")
    return f"NUMA_LAUNCH_BIND={value}" if value.lower() in ("0", "false", "no", "off", "n", "f") else None


_numactl_of_path: dict[str | None, str] = {}


def numactl_now() -> str | None:
    """Return numactl's path; one found before is taken again, as the wrapper notices where it is gone since."""
    path = os.environ.get("PATH")
    if path not in _numactl_of_path:
        found = find_numactl(os.environ)
        if found is None:
            return None
        _numactl_of_path[path] = found
    return _numactl_of_path[path]


def variables_now() -> dict[str, str]:
    return {name: os.environ[name] for name in (*WRAPPER_VARIABLES, VARIABLE) if name in os.environ}


def cannot_wrap(circumstances: Circumstances, process: Process, python: Executable) -> Note | None:
    """Return why the wrapper cannot bind this process, found before the start: its child would just exit with 255."""
    if circumstances.start_method != "spawn":
        name = f"{process.kind} {process.local_rank}"
        return warning("start-method", process=name, method=circumstances.start_method)
    if not is_executable(WRAPPER):
        fix = f"chmod +x {WRAPPER}, or install numa-launch on a file system that is not mounted noexec"
        return warning("wrapper-not-executable", path=WRAPPER, fix=fix)
    if preload := os.environ.get("LD_PRELOAD"):
        problem = _prober.preload_problem(preload)
        if problem:
            fix = f"LD_PRELOAD={preload} is set and ends it ({problem}): set it inside the worker instead"
            return warning("wrapper-not-executable", path="/bin/sh", fix=fix)
    if not python:
        return warning(
            "wrapper-not-executable",
            path="an embedded Python without sys.executable",
            fix=("call multiprocessing.set_executable with the path of a Python first"),
        )
    return None


def started_since(swap: Swap) -> list[Any]:
    """Return the multiprocessing children that this process has started since, as far as they are not joined yet."""
    from multiprocessing import process

    return sorted(set(process._children) - swap.children, key=lambda child: child.name)  # type: ignore[attr-defined]


def judge(started: list[Any], strict: bool) -> None:
    """Warn of children that could not be bound, as they were not spawned or not started inside the block."""
    if not started:
        say_once(logging.WARNING, warning("nothing-started").message)
    method_of = {child: getattr(child._popen, "method", "spawn") for child in started}
    others = [child for child, method in method_of.items() if method != "spawn"]
    for child in others:
        said = warning("start-method", process=child.name, method=method_of[child])
        if not strict:
            say_once(logging.WARNING, said.message)
            continue
        for other in others:
            other.terminate()
        raise StrictError(said.message)
