"""Run every check on a machine and say what follows from them.

Example: ``examine(machine, asked, made, live).would_bind`` is True where what was asked for would be bound.
What was read decides on nodes, GPUs and limits; what the plan says of them decides whether they matter.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from numa_launch.apply.backend import Backend
from numa_launch.apply.probe import Prober
from numa_launch.config import LaunchConfig
from numa_launch.doctor import tries
from numa_launch.doctor.check import ORDER, Check, Status, not_checked, of_note
from numa_launch.errors import NumaLaunchError
from numa_launch.idsets import format_ids
from numa_launch.machine.model import Machine
from numa_launch.plan.auto import unmet
from numa_launch.plan.decide import plan
from numa_launch.plan.model import Binding, Circumstances, Plan, Process
from numa_launch.reasons import Note, note

CHECK_OF_CODE = {
    "disabled": "switched-on",
    "start-method": "start-method",
    "executor": "plan",
    "device-ids": "plan",
    "numactl-missing": "backend",
    "no-gpu": "gpus",
    "single-node": "nodes",
    "affinity-constrained": "affinity",
    "affinity-unknown": "affinity",
    "mempolicy-unknown": "inherited-policy",
    "mempolicy-set": "inherited-policy",
    "gpu-node-unknown": "gpus",
    "gpu-index-out-of-range": "plan",
    "node-without-cpus": "gpus",
    "overlapping-nodes": "nodes",
    "no-node-directory": "nodes",
    "node-without-memory": "nodes",
    "nearest-node": "gpus",
    "memory-not-allowed": "cpuset",
    "cuda-device-order": "gpus",
    "ze-flat-hierarchy": "gpus",
    "driver-silent": "gpus",
    "gpu-node-disagreement": "gpus",
    "visible-device-unknown": "gpus",
    "mpi-launcher": "plan",
    "rank-unreadable": "plan",
}
"""Which check speaks of a reason or warning; cpus-not-allowed is the cpuset's or the affinity's."""

NOTES = ("no-node-directory", "node-without-memory", "nearest-node")
"""Reasons that change a binding for nobody's loss."""


class Asked(NamedTuple):
    """What is to be examined: as for a dry run, and the warnings of asking so."""

    config: LaunchConfig
    processes: Sequence[Process]
    circumstances: Circumstances
    warnings: tuple[Note, ...] = ()


class Report(NamedTuple):
    """What was found.

    `can_bind`: these processes could be bound here, by --bind if not as asked; `would_bind`: they would be, as asked.
    `verdict` is one sentence, `fix` the one thing to do, empty: nothing. `plan` is None where there cannot be one.
    """

    can_bind: bool
    would_bind: bool
    verdict: str
    fix: str
    checks: tuple[Check, ...]
    plan: Plan | None


def examine(machine: Machine, asked: Asked, backend: Backend | None, live: bool) -> Report:
    """Run every check; without `live` the machine is a captured one, and what only trying shows is not checked."""
    made, problem = planned(machine, asked)
    limits = list(unmet(machine, asked.config, asked.circumstances))
    failing = {problem} if problem else set()
    if made is None and not has_lists(asked.config):
        failing |= {said.message for said in limits if said.code in ("no-gpu", "gpu-node-unknown")}
    elif made and made.skip_reason:
        failing |= {made.skip_reason.message, *(said.message for said in limits if made.mode == "auto")}
    elif made:
        failing |= {binding.reasons[0].message for binding in made.processes if not binding.bound}
    said = said_of(machine, asked, made, limits, failing)
    checks = [*read_checks(machine, made), plan_check(made, problem, said)]
    checks += live_checks(machine, made, backend, asked.config) if live else map(not_checked, LIVE)
    merged = tuple(worst_of(check, [other for other in said if other.name == check.name]) for check in checks)
    return report(machine, asked, made, merged, backend)


def has_lists(config: LaunchConfig) -> bool:
    return bool(config.numa_bind_nodes or config.numa_bind_cpus)


def planned(machine: Machine, asked: Asked) -> tuple[Plan | None, str]:
    """Return the plan, or why there cannot be one."""
    try:
        return plan(machine, asked.config, processes=asked.processes, circumstances=asked.circumstances), ""
    except NumaLaunchError as error:
        return None, str(error)


def said_of(
    machine: Machine, asked: Asked, made: Plan | None, limits: Sequence[Note], failing: set[str]
) -> list[Check]:
    """Return what plan and limits say, each as the check that it belongs to."""
    reasons = [reason for binding in made.processes for reason in binding.reasons] if made else []
    skip = [made.skip_reason] if made and made.skip_reason else []
    notes = dict.fromkeys([*limits, *skip, *machine.notes, *asked.warnings, *reasons])
    said = []
    for each in notes:
        name = check_of(each.code, machine)
        if name is None:
            continue
        harmless = each in limits or each.code in NOTES
        status: Status = "fail" if each.message in failing else "note" if harmless else "warning"
        said.append(of_note(name, status, each))
    return said


def check_of(code: str, machine: Machine) -> str | None:
    """Return the check that speaks of a code, None for what narrows a binding and hurts nobody."""
    if code == "cpus-not-allowed":
        return "cpuset" if confined(machine) else "affinity"
    return CHECK_OF_CODE.get(code)


def confined(machine: Machine) -> bool:
    """Return whether the cpuset leaves this process fewer CPUs than are online, or less memory than there is."""
    limits = machine.limits
    fewer_cpus = limits.cpuset is not None and not machine.online <= limits.cpuset
    return fewer_cpus or any(machine.has_memory(n.id) and not machine.may_use_memory_of(n.id) for n in machine.nodes)


def worst_of(check: Check, others: Sequence[Check]) -> Check:
    """Return the worst of a check and what else is said under its name, all messages of that status in one."""
    every = [check, *others]
    worst = min((each.status for each in every), key=ORDER.index)
    equal = [each for each in every if each.status == worst]
    if worst in ("ok", "not checked"):
        return check
    first = equal[0]
    fixes = dict.fromkeys(each.fix for each in equal if each.fix)
    messages = dict.fromkeys(each.message for each in equal)
    return first._replace(message="; ".join(messages), fix="; ".join(fixes))


def read_checks(machine: Machine, made: Plan | None) -> list[Check]:
    """Return what was read, before the plan's judgement of it."""
    limits = machine.limits
    off = made is not None and made.mode == "off"
    with_cpus = machine.nodes_with_cpus
    others = [node.id for node in machine.nodes if not node.cpus]
    without = f"; without: {format_ids(others)}" if others else ""
    affinity = "unknown" if limits.affinity is None else format_ids(limits.affinity)
    cpuset = Check("cpuset", "ok", "no cpuset confines this process")
    if confined(machine):
        mems = "all nodes" if limits.memory_nodes is None else f"nodes {format_ids(limits.memory_nodes)}"
        message = f"confined to CPUs {format_ids(machine.usable_cpus)} and memory of {mems}: binding stays within"
        cpuset = Check("cpuset", "note", message)
    return [
        Check("switched-on", "ok", "binding is off" if off else "binding is not switched off"),
        Check("nodes", "ok", f"{len(with_cpus)} with CPUs: {format_ids(with_cpus)}{without}"),
        Check("gpus", "ok", gpus_text(machine)),
        Check("affinity", "ok", f"this process may run on CPUs {affinity}"),
        cpuset,
        Check("inherited-policy", "ok", f"the memory policy is {limits.policy}"),
    ]


def gpus_text(machine: Machine) -> str:
    """Return the visible GPUs by node: ``node 0: GPU 0-1 (pci-node); node 1: GPU 2-3 (nvml-cpus)``."""
    places = dict.fromkeys((gpu.node, gpu.source) for gpu in machine.visible_gpus)
    texts = []
    for node, source in sorted(places, key=lambda place: (place[0] is None, place)):
        here = [i for i, gpu in enumerate(machine.visible_gpus) if (gpu.node, gpu.source) == (node, source)]
        where = "node unknown" if node is None else f"node {node}"
        texts.append(f"{where}: GPU {format_ids(here)}" + (f" ({source})" if source else ""))
    return "; ".join(texts) or "none is visible"


def plan_check(made: Plan | None, problem: str, said: Sequence[Check]) -> Check:
    """Return whether sizes, ranks and lists fit this machine, unless another check says why not."""
    if made is None and not any(check.status == "fail" for check in said):
        return Check("plan", "fail", problem)
    return Check("plan", "ok", f"{counted(len(made.processes))} in mode {made.mode}" if made else "there is none")


LIVE = (
    *("backend", "policy-set", "policy-read", "preferred-many", "start-method", "wrapper", "ld-preload"),
    *("numa-balancing", "zone-reclaim"),
)
"""The checks of the live machine, in their order."""


def live_checks(machine: Machine, made: Plan | None, backend: Backend | None, config: LaunchConfig) -> list[Check]:
    """Return what trying shows."""
    prefers_several = any(b.memory_policy == "preferred-many" for b in made.processes) if made else False
    preload = tries.ld_preload(backend)
    may_set = tries.policy_set(machine, wanted=config.memory_policy != "none")
    many = tries.preferred_many(machine, backend, may_set.status == "ok", wanted=prefers_several)
    if preload.status == "fail":
        blocked = "not checked, as LD_PRELOAD ends what it starts"
        bound, many, wrapper = (not_checked(name, blocked) for name in ("backend", "preferred-many", "wrapper"))
    else:
        bound, wrapper = backend_check(made, backend, may_set, many), tries.wrapper(sys.executable)
        if backend and backend.script and config.backend == "auto" and bound.status == "ok":
            bound = bound._replace(
                status="note", message=f"numactl is not on PATH; {bound.message}", fix="install the package numactl"
            )
    checks = [bound, may_set, tries.policy_read(), many, tries.start_method(), wrapper, preload]
    checks += [tries.numa_balancing(), tries.zone_reclaim()]
    if config.strict:
        return [check._replace(status="fail") if check.status == "warning" else check for check in checks]
    return checks


def backend_check(made: Plan | None, backend: Backend | None, may_set: Check, many: Check) -> Check:
    """Try the plan's own arguments; what is dropped for a reason that another check names is no failure of this one."""
    if backend is None:
        return of_note("backend", "fail", note("numactl-missing"))
    bindings = [binding for binding in made.processes if binding.bound] if made else []
    if not bindings:
        problem = tries.try_backend(backend)
        if problem:
            return Check("backend", "fail", f"{backend.program}: {problem}", other_backend(backend), "probe-failed")
    prober = Prober()
    found = {binding: prober.arguments(backend, binding, auto=False, strict=False) for binding in bindings}
    for binding, each in found.items():
        if each.dropped and not each.args:
            return Check("backend", "fail", each.dropped.message, other_backend(backend), "probe-failed")
        if each.dropped and not is_explained(binding, may_set, many):
            return Check("backend", "warning", each.dropped.message, other_backend(backend), "binding-dropped")
    what = "CPUs" if any(each.dropped for each in found.values()) else "CPUs and memory"
    by = "the built-in backend" if backend.script else backend.program
    return Check("backend", "ok", f"{by} binds {what}" if bindings else f"{by} works")


def is_explained(binding: Binding, may_set: Check, many: Check) -> bool:
    """Return whether the checks of memory policies say why a part of the binding was dropped."""
    return may_set.status != "ok" or (binding.memory_policy == "preferred-many" and many.status != "ok")


def other_backend(backend: Backend) -> str:
    return "install the package numactl" if backend.script else "pass --backend builtin, or install numactl again"


def report(
    machine: Machine, asked: Asked, made: Plan | None, checks: tuple[Check, ...], backend: Backend | None
) -> Report:
    """Return the verdict that follows from the checks."""
    failed = [check for check in checks if check.status == "fail"]
    warned = [check for check in checks if check.status == "warning"]
    bound = sum(binding.bound for binding in made.processes) if made else 0
    if bound and not failed:
        by = f" by {'the ' if backend.script else ''}{backend.name}" if backend else ""
        less = f", but for this: {warned[0].message}" if warned else ""
        return Report(True, True, f"{counted(bound)} would be bound{by}{less}", fix_of(warned), checks, made)
    first = made.skip_reason.code if made and made.skip_reason else None
    failed.sort(key=lambda check: check.code != first)
    why = failed[0].message if failed else "there is nothing to bind"
    verdict = f"{'not all' if bound else 'nothing'} would be bound: {why}"
    return Report(could_bind(machine, asked, checks), False, verdict, fix_of(failed), checks, made)


def fix_of(checks: Sequence[Check]) -> str:
    return next((check.fix for check in checks if check.fix), "")


def counted(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def could_bind(machine: Machine, asked: Asked, checks: Sequence[Check]) -> bool:
    """Return whether --bind would bind all of them."""
    if any(check.status == "fail" for check in checks if check.name in LIVE):
        return False
    config = replace(asked.config, numa_bind=True)
    circumstances = asked.circumstances._replace(switched_off=None)
    made, _ = planned(machine, asked._replace(config=config, circumstances=circumstances))
    return made is not None and all(binding.bound for binding in made.processes)
