"""Run every check on a machine and say what follows from them.

Example: ``examine(machine, asked, backend, live=True).would_bind`` is True where what was asked for would be bound.
What was read decides on nodes, GPUs and limits; what the plan says of them decides whether they matter.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from numa_launch.apply.backend import Backend
from numa_launch.apply.numactl import memory_args
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
from numa_launch.reasons import Note, counted, note

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

HARMLESS = ("no-node-directory", "node-without-memory", "nearest-node")
"""Reasons for a binding that is another than the plain rule's and no worse."""


class Asked(NamedTuple):
    """What is to be examined: as for a dry run, and the warnings of asking so."""

    config: LaunchConfig
    processes: Sequence[Process]
    circumstances: Circumstances
    warnings: tuple[Note, ...] = ()


class Report(NamedTuple):
    """What was found.

    `can_bind`: a process could be bound here, if asked for otherwise; `would_bind`: all would be bound, as asked.
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
    made, error = planned(machine, asked)
    conditions = [said for said in unmet(machine, asked.config, asked.circumstances) if matters(said, asked.config)]
    failing = failing_notes(made, error, conditions)
    said = said_of(machine, asked, made, conditions, failing)
    checks = [*read_checks(machine), plan_check(made, error)]
    checks += live_checks(machine, made, backend, asked.config) if live else map(not_checked, LIVE)
    merged = tuple(worst_of([check, *(other for other in said if other.name == check.name)]) for check in checks)
    return report(machine, made, merged, backend)


def matters(condition: Note, config: LaunchConfig) -> bool:
    """Return whether a condition has to do with what is asked: lists make GPUs indifferent."""
    lists = config.numa_bind_nodes or config.numa_bind_cpus
    return not (lists and condition.code in ("no-gpu", "gpu-node-unknown"))


def planned(machine: Machine, asked: Asked) -> tuple[Plan | None, NumaLaunchError | None]:
    """Return the plan, or why there cannot be one."""
    try:
        return plan(machine, asked.config, processes=asked.processes, circumstances=asked.circumstances), None
    except NumaLaunchError as error:
        return None, error


def failing_notes(made: Plan | None, error: NumaLaunchError | None, conditions: Sequence[Note]) -> set[Note]:
    """Return the reasons that keep processes unbound: in mode auto every condition that is not met."""
    if made is None:
        return {error.note} if error and error.note else set()
    if made.skip_reason:
        return {made.skip_reason, *(conditions if made.mode == "auto" else ())}
    return {reason for binding in made.processes if not binding.bound for reason in binding.reasons}


def said_of(
    machine: Machine, asked: Asked, made: Plan | None, conditions: Sequence[Note], failing: set[Note]
) -> list[Check]:
    """Return what plan and conditions say, each as the check that it belongs to."""
    reasons = [reason for binding in made.processes for reason in binding.reasons] if made else []
    said = []
    for each in dict.fromkeys([*conditions, *sorted(failing), *machine.notes, *asked.warnings, *reasons]):
        name = check_of(each.code, machine)
        if name is not None:
            harmless = each in conditions or each.code in HARMLESS
            status: Status = "fail" if each in failing else "note" if harmless else "warning"
            said.append(of_note(name, status, each))
    return said


def check_of(code: str, machine: Machine) -> str | None:
    """Return the check that speaks of a code, None for what narrows a binding and hurts nobody."""
    if code == "cpus-not-allowed":
        return "affinity" if machine.usable_cpus != machine.cpuset_cpus else "cpuset"
    return CHECK_OF_CODE.get(code)


def confined(machine: Machine) -> bool:
    """Return whether the cpuset leaves this process fewer CPUs than are online, or less memory than there is."""
    fewer_cpus = machine.cpuset_cpus != machine.online
    return fewer_cpus or any(machine.withholds_memory_of(node.id) for node in machine.nodes)


def worst_of(every: Sequence[Check]) -> Check:
    """Return the worst of what is said under one name, the first's code and all messages and fixes of that status."""
    worst = min((each.status for each in every), key=ORDER.index)
    equal = [each for each in every if each.status == worst]
    messages = dict.fromkeys(each.message for each in equal)
    fixes = dict.fromkeys(each.fix for each in equal if each.fix)
    return equal[0]._replace(message="; ".join(messages), fix="; ".join(fixes))


def read_checks(machine: Machine) -> list[Check]:
    """Return what was read, before the plan's judgement of it."""
    limits = machine.limits
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
        Check("switched-on", "ok", "binding is not switched off"),
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


def plan_check(made: Plan | None, error: NumaLaunchError | None) -> Check:
    """Return whether sizes, ranks and lists fit this machine; an error's note belongs to a check of its own."""
    if made is None and error and not error.note:
        return Check("plan", "fail", str(error), "correct what is named there")
    count = counted(len(made.processes), "process") if made else "nothing"
    return Check("plan", "ok", f"{count} in mode {made.mode}" if made else f"{count} can be planned")


LIVE = (
    *("backend", "policy-set", "policy-read", "preferred-many", "start-method", "wrapper", "ld-preload"),
    *("numa-balancing", "zone-reclaim"),
)
"""The checks of the live machine, in their order."""


def live_checks(machine: Machine, made: Plan | None, backend: Backend | None, config: LaunchConfig) -> list[Check]:
    """Return what trying shows."""
    prober = Prober()
    preload = tries.ld_preload(prober, backend)
    bound_ones = made.bound_processes if made else ()
    sets_memory = any(b.memory_policy for b in bound_ones) if bound_ones else config.memory_policy != "none"
    may_set = tries.policy_set(machine, wanted=sets_memory)
    prefers_several = any(b.memory_policy == "preferred-many" for b in bound_ones)
    many = tries.preferred_many(prober, machine, backend, may_set, wanted=prefers_several)
    blocked = "not checked, as LD_PRELOAD ends what it starts"
    wrapper = not_checked("wrapper", blocked) if preload.status == "fail" else tries.wrapper(sys.executable)
    if preload.status == "fail" and backend and tries.backend_problem(prober, backend):
        bound, many = not_checked("backend", blocked), not_checked("preferred-many", blocked)
    else:
        bound = backend_check(prober, bound_ones, backend, may_set, many)
        if backend and backend.is_builtin and config.backend == "auto" and bound.status == "ok":
            message = f"numactl is not on PATH; {bound.message}"
            bound = bound._replace(status="note", message=message, fix="install the package numactl")
    checks = [bound, may_set, tries.policy_read(), many, tries.start_method(), wrapper, preload]
    checks += [tries.numa_balancing(), tries.zone_reclaim()]
    if config.strict:
        return [check._replace(status="fail") if check.status == "warning" else check for check in checks]
    return checks


def backend_check(
    prober: Prober, bindings: Sequence[Binding], backend: Backend | None, may_set: Check, many: Check
) -> Check:
    """Try the plan's own arguments; what is dropped for a reason that another check names is no failure of this one."""
    if backend is None:
        return of_note("backend", "fail", note("numactl-missing"))
    if not bindings:
        problem = tries.backend_problem(prober, backend)
        if problem:
            return Check("backend", "fail", f"{backend.program}: {problem}", other_backend(backend), "probe-failed")
    found = {binding: prober.arguments(backend, binding, auto=False, strict=False) for binding in bindings}
    for binding, each in found.items():
        if each.dropped and not each.args:
            return of_dropped("fail", each.dropped, backend)
        if each.dropped and not is_explained(binding, may_set, many):
            return of_dropped("warning", each.dropped, backend)
    memory = any(memory_args(binding) and not each.dropped for binding, each in found.items())
    what = "CPUs and memory" if memory else "CPUs"
    by = backend.name if backend.is_builtin else backend.program
    return Check("backend", "ok", f"{by} binds {what}" if bindings else f"{by} works")


def of_dropped(status: Status, dropped: Note, backend: Backend) -> Check:
    """Return what was dropped, with the fix for what the backend said or, where there is none, the other backend."""
    return Check("backend", status, dropped.what, dropped.fix or other_backend(backend), dropped.code)


def is_explained(binding: Binding, may_set: Check, many: Check) -> bool:
    """Return whether the checks of memory policies say why a part of the binding was dropped."""
    refused = may_set.status not in ("ok", "not checked")
    return refused or (binding.memory_policy == "preferred-many" and many.status not in ("ok", "not checked"))


def other_backend(backend: Backend) -> str:
    return "install the package numactl" if backend.is_builtin else "pass --backend builtin, or install numactl again"


def report(machine: Machine, made: Plan | None, checks: tuple[Check, ...], backend: Backend | None) -> Report:
    """Return the verdict that follows from the checks."""
    failed = [check for check in checks if check.status == "fail"]
    warned = [check for check in checks if check.status == "warning"]
    works = not any(check.name in ("backend", "ld-preload") for check in failed)
    bound = len(made.bound_processes) if made and works else 0
    if made and bound == len(made.processes) and not failed:
        by = f" by {backend.name}" if backend else ", as far as a capture shows"
        less = f", but for this: {warned[0].message}" if warned else ""
        verdict = f"{counted(bound, 'process')} would be bound{by}{less}"
        return Report(True, True, verdict, fix_of(warned), checks, made)
    first = made.skip_reason.code if made and made.skip_reason else None
    # Where there is nothing to gain, that is the answer; else what the plan says.
    failed.sort(key=lambda check: (check.code != "single-node", check.code != first))
    why = failed[0].message if failed else "there is nothing to bind"
    verdict = f"{'not all' if bound else 'nothing'} would be bound: {why}"
    return Report(could_bind(machine, checks), False, verdict, fix_of(failed), checks, made)


def fix_of(checks: Sequence[Check]) -> str:
    return next((check.fix for check in checks if check.fix), "")


def could_bind(machine: Machine, checks: Sequence[Check]) -> bool:
    """Return whether a process could be bound here at all, by --bind or lists."""
    works = not any(check.status == "fail" for check in checks if check.name in LIVE)
    return works and any(machine.usable_cpus_of(node) for node in machine.nodes_with_cpus)
