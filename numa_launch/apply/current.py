"""``bind_current_process``: bind the calling process itself, for workers that nobody can start under numactl.

Example: the first line of a forked worker: ``bind_current_process(LaunchConfig(), local_rank)``.
Affinity and memory policy are a thread's (sched_setaffinity(2), set_mempolicy(2)): affinity is set for every thread
there is, the policy for the calling thread and those it starts later, as the kernel has no more.
"""

import logging
import os
import threading
from typing import Any, NamedTuple

from numa_launch.apply.asked import check_process, what_switches_off
from numa_launch.apply.builtin import reset_mempolicy, set_mempolicy
from numa_launch.apply.detect import detect, variables_now, with_own_gpus
from numa_launch.apply.outcome import handover_variable, report, skipped, switched_off, unbound
from numa_launch.config import launch_config
from numa_launch.errors import StrictError
from numa_launch.log import say_once
from numa_launch.machine.handover import VARIABLE
from numa_launch.machine.limits import current_affinity, read_policy
from numa_launch.machine.model import Machine
from numa_launch.machine.read import require_linux
from numa_launch.plan.decide import plan
from numa_launch.plan.model import Binding, Circumstances, Kind, Plan, Process


class CurrentBinding(NamedTuple):
    """What bind_current_process did: the plan's binding, and in words each part of it that could not be reached."""

    binding: Binding
    not_reached: tuple[str, ...] = ()


def bind_current_process(
    config: Any, local_rank: int, dp_local_rank: int | None = None, process_kind: Kind = "worker"
) -> CurrentBinding:
    """Bind the calling process as worker `local_rank` (or as EngineCore); needs no numactl.

    What was set is also left in the environment (NUMA_LAUNCH_BOUND), so that the library in this process and in what
    it starts plans from what was allowed before. Where a visible-devices variable leaves exactly one GPU, a worker
    takes it whatever its rank.

    Raises ConfigError for what cannot be planned and StrictError, with nothing changed, where `config.strict` and its
    CPUs or memory cannot be bound.
    """
    require_linux()
    check_process(local_rank, dp_local_rank, process_kind)
    off = what_switches_off(config, os.environ)
    if off:
        return CurrentBinding(switched_off(Process(process_kind, local_rank, dp_local_rank), off))
    launch = launch_config(config)
    variables = variables_now()
    machine = with_own_gpus(detect(config, variables).machine, variables)
    takes_only_gpu = process_kind == "worker" and machine.only_gpu_left
    process = Process(process_kind, local_rank, dp_local_rank, takes_only_gpu=takes_only_gpu)
    made = plan(machine, launch, processes=[process], circumstances=Circumstances(binds_itself=True))
    return bind_as_planned(machine, made, launch.strict)


def bind_as_planned(machine: Machine, made: Plan, strict: bool) -> CurrentBinding:
    """Put the plan's one process in force on the calling one, and say what could not be reached.

    Raises StrictError, with nothing changed, where `strict` and its CPUs or memory cannot be bound.
    """
    report(made)
    binding = made.processes[0]
    if not binding.bound:
        return CurrentBinding(skipped(made))
    before = current_affinity()
    try:
        os.sched_setaffinity(0, binding.cpus)
    except OSError as error:
        return failed(binding, f"its CPUs cannot be set: {error.strerror}", strict)
    not_reached = []
    if binding.memory_policy:
        problem = None
        try:
            set_mempolicy(binding.memory_policy, binding.memory_nodes)
        except OSError as error:
            problem = error.strerror
        if problem and strict:
            os.sched_setaffinity(0, before or binding.cpus)
            return failed(binding, f"its memory policy cannot be set: {problem}", strict=True)
        if problem:
            not_reached.append(f"memory policy: {problem}")
            binding = binding._replace(memory_policy=None, memory_nodes=())
    others = bind_other_threads(binding.cpus)
    not_reached += [f"CPUs of thread {thread}: {problem}" for thread, problem in others.items() if problem]
    if others and binding.memory_policy:
        not_reached.append(f"memory policy of {len(others)} other threads, which started before")
    os.environ.update(handover_variable(machine, binding))
    if not_reached:
        say_once(logging.INFO, f"bound, except for {'; '.join(not_reached)}")
    return CurrentBinding(binding, tuple(not_reached))


class Before(NamedTuple):
    """What was in force before this process was bound: the calling thread's, and what had been handed over to it."""

    cpus: frozenset[int] | None
    policy: str | None
    handover: str | None

    @classmethod
    def now(cls) -> "Before":
        return cls(current_affinity(), read_policy(""), os.environ.get(VARIABLE))


def unbind_current_process(before: Before) -> None:
    """Put back what was in force: CPUs for every thread, the memory policy for the calling one where it was default.

    What the kernel refuses stays, and a policy of somebody else's becomes the default: both are logged.
    """
    problems = []
    if before.cpus is not None:
        try:
            os.sched_setaffinity(0, before.cpus)
        except OSError as error:
            problems.append(f"CPUs: {error.strerror}")
        others = bind_other_threads(before.cpus)
        problems += [f"CPUs of thread {thread}: {problem}" for thread, problem in others.items() if problem]
    if before.policy != read_policy(""):
        try:
            reset_mempolicy()
        except OSError as error:
            problems.append(f"memory policy: {error.strerror}")
        if before.policy != "default":
            problems.append(f"memory policy {before.policy}, which was set before")
    if before.handover is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before.handover
    if problems:
        say_once(logging.WARNING, f"unbound again, but not put back: {'; '.join(problems)}")


def failed(binding: Binding, problem: str, strict: bool) -> CurrentBinding:
    message = f"the current process stays unbound: {problem}"
    if strict:
        raise StrictError(message)
    say_once(logging.WARNING, message)
    return CurrentBinding(unbound(binding, None), (problem,))


def bind_other_threads(cpus: frozenset[int]) -> dict[int, str | None]:
    """Set the affinity of every other thread, also of those that appear meanwhile; return each one's problem."""
    done: dict[int, str | None] = {}
    own = threading.get_native_id()
    if not os.path.exists(f"/proc/self/task/{own}"):  # no /proc, or that of another PID namespace
        return {own: "the other threads do not show in /proc"} if threading.active_count() > 1 else {}
    while new := {int(name) for name in os.listdir("/proc/self/task")} - done.keys() - {own}:
        for thread in new:
            try:
                os.sched_setaffinity(thread, cpus)
                done[thread] = None
            except ProcessLookupError:
                done[thread] = None
            except OSError as error:
                done[thread] = error.strerror
    return done
