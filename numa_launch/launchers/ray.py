"""Ray starts its workers itself, so each binds itself, by the GPUs that Ray gave to its actor or task.

Example: ``bind_current_actor()`` in an actor with GPU 3 binds it to the node of that GPU.
What an actor's own GPUs are, Ray says by their ids (``RuntimeContext.get_accelerator_ids``): entries of the
visible-devices variable that Ray was started with, or numbers where it was not set. The list of GPUs in the environment
is not asked: it is all workers' where RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES is set. Seen with Ray 2.60.
"""

import functools
import importlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from numa_launch.apply.asked import what_switches_off
from numa_launch.apply.current import Before, CurrentBinding, bind_as_planned, unbind_current_process
from numa_launch.apply.detect import detect, variables_now
from numa_launch.apply.outcome import switched_off
from numa_launch.config import LaunchConfig, launch_config, named
from numa_launch.errors import ConfigError, StrictError
from numa_launch.log import say_once
from numa_launch.machine.files import read_text
from numa_launch.machine.model import Machine
from numa_launch.machine.read import require_linux
from numa_launch.machine.vendors import visible_gpus
from numa_launch.plan.decide import plan
from numa_launch.plan.model import Binding, Circumstances, Plan, Process
from numa_launch.reasons import Note, note, why_unbound

VISIBLE_DEVICES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}
"""Vendor → the variable whose entries Ray takes as the ids of its GPUs."""

GIVES_GPUS = "set_visible_accelerator_ids"
"""The function of ray._private.utils that a worker calls once it knows the GPUs of its actor or task."""

_before: Before | None = None
"""What was in force on this worker before it was bound; None while it is not."""

_latest: tuple[str, ...] | None = None
"""The GPUs for which the hook last bound this worker, or tried to."""


def bind_current_actor(cfg: Any = None) -> CurrentBinding:
    """Bind the calling Ray worker to the nodes of the GPUs that its actor (or task) has; call it in ``__init__``.

    `cfg` is a LaunchConfig (None: the default, which binds where it is safe) or an object with a `parallel_config`.
    Its sizes, ranks and assigned_physical_gpu_ids do not matter, as Ray says which GPUs these are; its lists have one
    entry per GPU that Ray has on the host. An actor with several GPUs gets the CPUs and memory of all their nodes.
    Affinity is set for every thread of the worker, the memory policy for the calling thread and those it starts
    later; `not_reached` counts the others. Outside a Ray worker, without a GPU, or with one that is not known it stays
    unbound, the reason (`ray-unknown`, `actor-without-gpu`, `actor-gpu-unknown`) in its binding.

    Raises ConfigError without Ray and for what cannot be planned, and StrictError where `strict` and it cannot be
    bound.
    """
    require_linux()
    config = LaunchConfig() if cfg is None else cfg
    off = what_switches_off(config, os.environ)
    if off:
        return CurrentBinding(switched_off(Process("worker"), off))
    launch = launch_config(config)
    ids = own_gpu_ids()
    release()
    if not ids:
        return stays_unbound(note("ray-unknown" if ids is None else "actor-without-gpu"), launch)
    variables = variables_now()
    machine = detect(config, variables).machine
    variable = VISIBLE_DEVICES[machine.gpus[0].vendor or "nvidia" if machine.gpus else "nvidia"]
    gpus = numbered(ids, started_with(variable))
    if gpus is None:
        why = f"is not among those of {variable} that it was started with"
        return stays_unbound(note("actor-gpu-unknown", ids=", ".join(ids), why=why), launch)
    own_config = config_of(launch, gpus)
    own_machine = machine_of(machine, gpus, variables, variable)
    if machine.gpus and not own_machine.visible and not (own_config.numa_bind_nodes or own_config.numa_bind_cpus):
        why = f"is not among the {len(machine.gpus)} GPUs of this host"
        return stays_unbound(note("actor-gpu-unknown", ids=", ".join(ids), why=why), launch)
    return bind_remembered(own_machine, planned(own_machine, own_config, gpus), launch.strict)


class OwnGpu(NamedTuple):
    """A GPU of the actor: its number among those that Ray has on this host, and its id."""

    number: int
    id: str


def own_gpu_ids() -> tuple[str, ...] | None:
    """Return the ids of the GPUs that Ray gave to what runs in this worker; None where this is no worker of Ray's."""
    ray = imported("ray")
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return None
    return tuple(sorted(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", ())))


def imported(name: str) -> Any:
    """Return a module of Ray; raises ConfigError where Ray is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ConfigError("Ray is not installed in this environment: pip install 'numa-launch[ray]'") from None


def started_with(variable: str) -> list[str] | None:
    """Return the entries of a visible-devices variable as Ray started this worker, before it set the actor's own."""
    for entry in (read_text("/proc/self/environ") or "").split("\0"):
        name, _, value = entry.partition("=")
        if name == variable:
            return value.split(",") if value else []
    return None


def numbered(ids: Sequence[str], listed: Sequence[str] | None) -> tuple[OwnGpu, ...] | None:
    """Return the GPUs by number: their place in the list that Ray was started with, else the ids themselves.

    None where an id is neither.
    """
    if listed is None:
        numbers = [int(gpu) if gpu.isascii() and gpu.isdigit() else None for gpu in ids]
    else:
        numbers = [listed.index(gpu) if gpu in listed else None for gpu in ids]
    found = [OwnGpu(number, gpu) for number, gpu in zip(numbers, ids, strict=True) if number is not None]
    return tuple(sorted(found)) if len(found) == len(ids) else None


def config_of(launch: LaunchConfig, gpus: Sequence[OwnGpu]) -> LaunchConfig:
    """Return the config of the actor alone: one process, and of the lists the entries of its GPUs."""
    for field in ("numa_bind_nodes", "numa_bind_cpus"):
        entries = getattr(launch, field)
        if entries is not None and gpus[-1].number >= len(entries):
            counted = f"{named(field)} has {len(entries)} entries"
            which = f"an actor with GPU {gpus[-1].id}"
            raise ConfigError.of(note("gpu-index-out-of-range", process=which, index=gpus[-1].number, counted=counted))
    nodes, cpus = launch.numa_bind_nodes, launch.numa_bind_cpus
    return LaunchConfig(
        numa_bind=launch.numa_bind,
        numa_bind_nodes=nodes and [nodes[gpu.number] for gpu in gpus],
        numa_bind_cpus=cpus and [cpus[gpu.number] for gpu in gpus],
        memory_policy=launch.memory_policy,
        strict=launch.strict,
    )


def machine_of(machine: Machine, gpus: Sequence[OwnGpu], variables: Mapping[str, str], variable: str) -> Machine:
    """Return the machine with the actor's GPUs as the visible ones; with none where one is not known here.

    Each is looked up alone, as a list may name several slices (MIG) of a GPU.
    """
    found = [visible_gpus(machine.gpus, {**variables, variable: gpu.id}).positions for gpu in gpus]
    positions = tuple(position for some in found for position in some)
    return replace(machine, visible=positions if all(found) else (), visible_by=None)


def planned(machine: Machine, config: LaunchConfig, gpus: Sequence[OwnGpu]) -> Plan:
    """Return the plan of an actor with these GPUs: a worker, or one process over all of several."""
    process = Process("worker") if len(gpus) == 1 else Process("EngineCore", over_all=True)
    made = plan(machine, config, processes=[process], circumstances=Circumstances(binds_itself=True))
    if len(gpus) > 1:
        return made
    number = gpus[0].number
    return made._replace(processes=(made.processes[0]._replace(local_rank=number, gpu_index=number),))


def bind_remembered(machine: Machine, made: Plan, strict: bool) -> CurrentBinding:
    """Bind this worker, and keep what was in force before."""
    global _before
    before = Before.now()
    done = bind_as_planned(machine, made, strict)
    if done.binding.bound:
        _before = before
    return done


def release() -> None:
    """Undo what an earlier call bound: a worker may be used again by tasks with other GPUs, or with none."""
    global _before
    if _before is not None:
        unbind_current_process(_before)
        _before = None


def stays_unbound(reason: Note, launch: LaunchConfig) -> CurrentBinding:
    """Return a binding of nothing; where explicit binding was asked for of an actor with GPUs, more than a note."""
    asked = launch.mode == "explicit" and reason.code != "actor-without-gpu"
    if asked and launch.strict:
        raise StrictError.of(reason)
    say_once(logging.WARNING if asked else logging.INFO, why_unbound(reason))
    return CurrentBinding(Binding("worker", 0, 0, reasons=(reason,)))


def runtime_env(cfg: Any = None, **other: Any) -> dict[str, Any]:
    """Return a runtime environment in which every worker binds itself as bind_current_actor(cfg) does.

    For ``ray.init(runtime_env=…)``, as Ray has setup hooks for whole jobs alone. `other` are further fields; a
    worker_process_setup_hook among them, a callable or ``"module.function"``, still runs, before ours. Raises
    ConfigError for a malformed `cfg` or hook.
    """
    config = LaunchConfig() if cfg is None else cfg
    launch_config(config)
    theirs = other.get("worker_process_setup_hook")
    if isinstance(theirs, str) and not all(theirs.rpartition(".")):
        raise ConfigError(f'worker_process_setup_hook: {theirs!r} must be a callable, or "module.function"')

    def bind_worker_to_its_gpus() -> None:
        if theirs is not None:
            function_of(theirs)()
        setup_worker(config)

    return {**other, "worker_process_setup_hook": bind_worker_to_its_gpus}


def function_of(hook: Callable[[], Any] | str) -> Callable[[], Any]:
    """Return a setup hook as a function, where Ray takes ``"module.function"`` too."""
    if not isinstance(hook, str):
        return hook
    module, _, name = hook.rpartition(".")
    function: Callable[[], Any] = getattr(importlib.import_module(module), name)
    return function


def setup_worker(cfg: Any = None) -> None:
    """Make this worker bind itself as soon as it has an actor or task, each time that its GPUs are others.

    It is a worker_process_setup_hook by itself too: ``"numa_launch.ray.setup_worker"``. A worker starts before it is
    known what will run in it, so binding waits for Ray's own function that hides other GPUs. Problems are logged and
    leave it unbound; with `strict` they raise, which Ray reports as the worker's end.
    """
    config = LaunchConfig() if cfg is None else cfg
    strict = launch_config(config).strict
    ray = imported("ray")
    try:
        utils = importlib.import_module("ray._private.utils")
    except ModuleNotFoundError:
        utils = None
    original = getattr(utils, GIVES_GPUS, None)
    if original is None:
        problem = (
            f"Ray {ray.__version__} has no {GIVES_GPUS}, so workers stay unbound: call "
            "numa_launch.ray.bind_current_actor in each actor's __init__"
        )
        if strict:
            raise StrictError(problem)
        say_once(logging.WARNING, problem)
        return

    @functools.wraps(original)
    def gives_gpus_and_binds(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        try:
            bind_for_these_gpus(config)
        except Exception as error:
            if strict:
                raise
            say_once(logging.WARNING, f"this worker stays unbound: {error}")
        return result

    setattr(utils, GIVES_GPUS, gives_gpus_and_binds)


def bind_for_these_gpus(config: Any) -> None:
    """Bind this worker, unless it has just served the same GPUs."""
    global _latest
    ids = own_gpu_ids()
    if ids != _latest:
        _latest = ids
        bind_current_actor(config)
