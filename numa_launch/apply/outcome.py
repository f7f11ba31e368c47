"""What became of a plan: what is in force after the probe, what is handed over, and what the user is told.

Example: ``applied(binding, found)`` is the binding without its memory part where the probe dropped that.
"""

import logging

from numa_launch.apply.numactl import memory_args, policy_text
from numa_launch.apply.probe import Found
from numa_launch.errors import ConfigError
from numa_launch.log import say_once
from numa_launch.machine.handover import VARIABLE, Handover
from numa_launch.machine.model import Machine
from numa_launch.plan.model import Binding, Plan, Process
from numa_launch.reasons import Note, note, why_unbound


def numactl_needed() -> ConfigError:
    return ConfigError(f"{note('numactl-missing').message}, or drop --bind (numa_bind=True) and the lists")


def switched_off(process: Process, by: str) -> Binding:
    """Return the binding of a process while binding is switched off, and say so."""
    reason = note("disabled", by=by)
    say_skipped(reason)
    return Binding(process.kind, process.local_rank, process.dp_local_rank or 0, reasons=(reason,))


def say_skipped(reason: Note) -> None:
    say_once(logging.INFO, why_unbound(reason))


def report(made: Plan) -> None:
    """Log, once each, why nothing is bound and what the user should know of the plan."""
    if made.skip_reason:
        say_skipped(made.skip_reason)
    for warned in made.warnings:
        say_once(logging.WARNING, warned.message)
    for reason in (reason for binding in made.processes if binding.bound for reason in binding.reasons):
        say_once(logging.INFO, reason.message)


def unbound(binding: Binding, reason: Note | None) -> Binding:
    """Return the binding with nothing to set, and why."""
    reasons = (reason,) if reason else ()
    return Binding(binding.kind, binding.local_rank, binding.dp_local_rank, binding.gpu_index, reasons=reasons)


def skipped(made: Plan) -> Binding:
    """Return the one unbound binding of a plan, with the plan's skip reason where it has one."""
    binding = made.processes[0]
    return unbound(binding, made.skip_reason) if made.skip_reason else binding


def applied(binding: Binding, found: Found) -> Binding:
    """Return the binding as the arguments that work will set it."""
    if found.dropped is None:
        return binding
    has_memory = all(arg in found.args for arg in memory_args(binding))
    return binding._replace(
        by_node=any(arg.startswith("--cpunodebind") for arg in found.args),
        memory_nodes=binding.memory_nodes if has_memory else (),
        memory_policy=binding.memory_policy if has_memory else None,
        reasons=(*binding.reasons, found.dropped),
    )


def handover_variable(machine: Machine, binding: Binding) -> dict[str, str]:
    """Return the variable that tells the process what was set on it, and what was allowed before."""
    limits = machine.limits
    policy = policy_text(binding) or limits.current_policy
    if limits.affinity is None or limits.policy is None or policy is None:
        return {}
    return {VARIABLE: str(Handover(binding.cpus, policy, limits.affinity, limits.policy))}
