"""From a plan to srun's options: ``--cpu-bind`` by the real map of ranks to nodes, and a step that holds those CPUs.

Example: eight ranks, rank i's GPU on node i, in an allocation: ``["--cpu-bind=verbose,rank_ldom", "--whole"]``.
No I/O: the environment is given. What Slurm accepts was seen with 22.05 (task/affinity, task/cgroup); see srun(1).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from numa_launch.config import LaunchConfig, MemoryChoice
from numa_launch.errors import ConfigError, StrictError
from numa_launch.idsets import format_ids
from numa_launch.machine.model import Machine
from numa_launch.plan.decide import plan
from numa_launch.plan.model import Circumstances, Plan, Process
from numa_launch.reasons import Note, note, why_unbound

METHODS = ("rank_ldom", "map_ldom", "mask_ldom", "map_cpu", "mask_cpu")
CHOICES = ("auto", "none", *METHODS)

WHOLE_JOB = "start it under salloc --exclusive or sbatch --exclusive"


class Step(NamedTuple):
    """What is known of the step before anything is added: from the user's srun options and the environment.

    `allocated_cpus` are the CPUs that the allocation has on each host (of several numbers the lowest), `hosts` the
    number of hosts that the step will have; None: not known. `whole`, `exclusive`, `ntasks` and `mem_bind`: the user
    gave them. `cpus_per_task` is (name, value); `cpus_per_gpu` and `forbidding` (what no step of a whole host goes
    with) are names.
    """

    inside: bool = False
    allocated_cpus: int | None = None
    hosts: int | None = None
    whole: bool = False
    exclusive: bool = False
    ntasks: bool = False
    mem_bind: bool = False
    cpus_per_task: tuple[str, str] | None = None
    cpus_per_gpu: str | None = None
    forbidding: str | None = None


class Line(NamedTuple):
    """What to add to srun's options, and what the user should know."""

    added: tuple[str, ...]
    warnings: tuple[Note, ...] = ()


# --- What the user and the environment say

LONG = {
    "cpu-bind": "cpu-",
    "cpus-per-gpu": "cpus-per-g",
    "cpus-per-task": "cpus-per-t",
    "exact": "exa",
    "exclusive": "exclus",
    "hint": "hi",
    "jobid": "jobi",
    "mem-bind": "mem-b",
    "nodes": "nodes",
    "ntasks": "ntasks",
    "ntasks-per-node": "ntasks-per-n",
    "tasks-per-node": "tasks",
    "whole": "wh",
}
"""srun's options that matter here, each with its shortest form that getopt_long(3) takes."""

SHORT = {"c": "cpus-per-task", "N": "nodes", "n": "ntasks"}
_CLUSTER = re.compile(r"-[EHklOQsuvXZ]*([cnN])(.*)", re.DOTALL)
"""One of SHORT, perhaps behind options without a value: ``-c4``, ``-ln8``."""

ENVIRONMENT = {
    "SLURM_CPUS_PER_GPU": "cpus-per-gpu",
    "SLURM_EXACT": "exact",
    "SLURM_EXCLUSIVE": "exclusive",
    "SLURM_HINT": "hint",
    "SLURM_WHOLE": "whole",
    "SRUN_CPUS_PER_TASK": "cpus-per-task",
}
"""Variables that srun reads as these options; the command line wins."""


def given_options(srun_options: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return those of srun's options that matter here: long name → as the user wrote it, and its value."""
    found: dict[str, tuple[str, str]] = {}
    for i, word in enumerate(srun_options):
        following = srun_options[i + 1] if i + 1 < len(srun_options) else ""
        if word.startswith("--"):
            written, equals, value = word.partition("=")
            typed = written[2:].replace("_", "-")
            name = next(
                (long for long, short in LONG.items() if long.startswith(typed) and len(typed) >= len(short)), ""
            )
            found |= {name: (written, value if equals else following)} if name else {}
        elif cluster := _CLUSTER.fullmatch(word):
            found[SHORT[cluster[1]]] = (f"-{cluster[1]}", cluster[2].removeprefix("=") or following)
    return found


def step_of(srun_options: Sequence[str], environ: Mapping[str, str]) -> Step:
    """Return what is known of the step that srun would start with these options in this environment.

    A step's own variables (SLURM_STEP_ID, SLURM_LOCALID) play no part: an sbatch script may have another step's.
    """
    given = {
        name: (variable, environ[variable])
        for variable, name in ENVIRONMENT.items()
        if variable in environ and is_said(name, environ[variable])
    }
    typed = given_options(srun_options)
    given |= typed
    own_job = environ.get("SLURM_JOB_ID")
    job = typed["jobid"][1] if "jobid" in typed else own_job
    of_job = environ if job and job == own_job else {}
    hosts = typed["nodes"][1] if "nodes" in typed else of_job.get("SLURM_JOB_NUM_NODES", "")
    return Step(
        inside=bool(job),
        allocated_cpus=fewest(of_job.get("SLURM_JOB_CPUS_PER_NODE", "")),
        hosts=number(hosts),
        whole="whole" in given,
        exclusive="exclusive" in given,
        ntasks="ntasks" in given,
        mem_bind="mem-bind" in typed,
        cpus_per_task=given.get("cpus-per-task"),
        cpus_per_gpu=given.get("cpus-per-gpu", (None,))[0],
        forbidding=next((given[name][0] for name in ("exact", "hint") if name in given), None),
    )


def is_said(name: str, value: str) -> bool:
    """Return whether srun takes a variable of this value as the option: a flag's also where it is empty."""
    if name == "exclusive":
        return True
    if name in ("exact", "whole"):
        return value == "" or value.lower() == "yes" or bool(re.fullmatch("[+-]?0*[1-9][0-9]*", value))
    return value != ""


def number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,9}", text) and int(text) else None


def fewest(text: str) -> int | None:
    """Return the lowest number of SLURM_JOB_CPUS_PER_NODE: ``16(x2),8`` is 16, 16 and 8 CPUs on three hosts."""
    counts = [number(re.sub(r"\(x[0-9]+\)$", "", part.strip())) for part in text.split(",")]
    known = [count for count in counts if count is not None]
    return min(known) if known and len(known) == len(counts) else None


# --- The plan


def srun_plan(
    machine: Machine, config: LaunchConfig, ranks: int, *, spread: bool = False, switched_off: str | None = None
) -> Plan:
    """Return the plan of a host whose task i is rank i, as srun starts them: within the cpuset, not this process.

    The parallel sizes of `config` play no part. Raises what ``plan`` raises.
    """
    limits = machine.limits._replace(affinity=machine.online, policy="default")
    one_shard = replace(
        config,
        tensor_parallel_size=max(1, ranks),
        pipeline_parallel_size=1,
        prefill_context_parallel_size=1,
        data_parallel_size=1,
        data_parallel_size_local=1,
        data_parallel_rank=0,
        data_parallel_rank_local=None,
        nnodes=1,
    )
    return plan(
        replace(machine, limits=limits),
        one_shard,
        processes=[Process("worker", rank, 0) for rank in range(ranks)],
        circumstances=Circumstances(switched_off=switched_off, spread_ranks=ranks if spread else None),
    )


# --- From the plan to options


def srun_line(machine: Machine, config: LaunchConfig, made: Plan, method: str, step: Step) -> Line:
    """Return what binds each task as `made` says, with the step that Slurm wants for it.

    `method` is one of CHOICES. A plan that binds nothing adds nothing and warns. Raises ConfigError where Slurm would
    refuse the step or the method, or would bind other than planned.
    """
    if method == "none":
        check_no_memory(config.memory_policy)
        return Line(("--cpu-bind=none",))
    if not made.bound:
        return Line((), made.warnings + ((made.skip_reason,) if made.skip_reason else ()))
    if step.forbidding:
        raise ConfigError(
            f"{step.forbidding} does not go with a binding, which needs a step of the whole host: leave it out, or "
            "pass --cpu-bind none"
        )
    chosen, warnings = choose(machine, config, made, method, step)
    binding = f"--cpu-bind=verbose,{chosen}{values_of(machine, chosen, made)}"
    memory, memory_warnings = memory_options(config, made, step)
    added = (binding, *memory, *step_options(machine, len(made.processes), step))
    return Line(added, made.warnings + warnings + memory_warnings)


def said(warned: Note, made: Plan) -> str:
    """Return a warning as one sentence, which says so where it is why nothing is bound."""
    return why_unbound(warned) if warned == made.skip_reason else warned.message


def choose(machine: Machine, config: LaunchConfig, made: Plan, method: str, step: Step) -> tuple[str, tuple[Note, ...]]:
    """Return the method to use; raises ConfigError for one that cannot bind as planned."""
    if part_of_host(machine, step):
        check_part(machine, method, step)
        method = "mask_cpu" if method == "auto" else method
    if method == "auto":
        return ("rank_ldom" if by_rank(machine, made) else "mask_cpu"), ()
    if not method.endswith("_ldom"):
        return method, ()
    if method == "rank_ldom":
        count = max(node.id for node in machine.nodes) + 1
        slurms = [(binding.local_rank % count,) for binding in made.processes]
        by_cpus = config.numa_bind_cpus is not None
        same = by_rank(machine, made) or (slurms == [binding.nodes for binding in made.processes] and not by_cpus)
        return method, () if same else (mismatch(slurms, made, by_cpus),)
    if config.numa_bind_cpus is not None:
        raise ConfigError(f"--cpu-bind {method} binds to whole nodes, not to the CPU lists given: use mask_cpu")
    return method, ()


def by_rank(machine: Machine, made: Plan) -> bool:
    """Return whether Slurm's own rule is right: task i's node is i, and all its CPUs are usable."""
    return all(
        binding.nodes == (binding.local_rank,) and binding.cpus == machine.node_of_id[binding.local_rank].cpus
        for binding in made.processes
    )


def mismatch(slurms: Sequence[tuple[int, ...]], made: Plan, by_cpus: bool) -> Note:
    sets = [binding.cpus if by_cpus else binding.nodes for binding in made.processes]
    planned = " ".join(format_ids(ids) or "none" for ids in sets)
    kind = "CPUs" if by_cpus else "nodes"
    return note("rank-ldom-mismatch", slurm=" ".join(map(format_ids, slurms)), planned=f"{kind} {planned}")


def part_of_host(machine: Machine, step: Step) -> bool:
    return step.allocated_cpus is not None and step.allocated_cpus < len(machine.online)


def check_part(machine: Machine, method: str, step: Step) -> None:
    """Raise ConfigError where a method cannot stay within an allocation of a part of the host."""
    has = f"this allocation has {step.allocated_cpus} of the host's {len(machine.online)} CPUs"
    is_shown = len(machine.cpuset_cpus) == step.allocated_cpus
    if method.endswith("_ldom"):
        within = ", or pass --cpu-bind mask_cpu to bind within them" if is_shown else ""
        raise ConfigError(f"Slurm refuses {method}, as {has}: {WHOLE_JOB}{within}")
    if not is_shown:
        raise ConfigError(
            f"{has}, and which ones does not show here (no cpuset with as many): {WHOLE_JOB}, or pass --cpu-bind none"
        )


def values_of(machine: Machine, method: str, made: Plan) -> str:
    """Return what stands behind a method's name: ``:`` and a value for each rank, nothing for rank_ldom."""
    if method == "rank_ldom":
        return ""
    if method == "mask_cpu":
        # What stays unbound may run wherever it is allowed: a list has a value for each rank.
        values = [mask(binding.cpus or machine.cpuset_cpus) for binding in made.processes]
    else:
        unbound = [binding.local_rank for binding in made.processes if not binding.bound]
        if unbound:
            raise ConfigError(
                f"rank {format_ids(unbound)} may use no CPU of its node, which --cpu-bind {method} cannot say: "
                "use mask_cpu"
            )
        if method == "map_cpu":
            values = [str(cpu) for cpu in first_cpus(made)]
        elif method == "mask_ldom":
            values = [mask(binding.nodes) for binding in made.processes]
        else:
            values = [str(node) for node in single_nodes(made)]
    return ":" + ",".join(values)


def mask(ids: Sequence[int] | frozenset[int]) -> str:
    return hex(sum(1 << i for i in ids))


def single_nodes(made: Plan) -> Iterator[int]:
    for binding in made.processes:
        if len(binding.nodes) != 1:
            raise ConfigError(
                f"rank {binding.local_rank} has the nodes {format_ids(binding.nodes)}, but --cpu-bind map_ldom gives "
                "each rank one: use mask_ldom"
            )
        yield binding.nodes[0]


def first_cpus(made: Plan) -> Iterator[int]:
    """Yield for each rank the first CPU of its set that no rank before it has."""
    taken: set[int] = set()
    for binding in made.processes:
        left = binding.cpus - taken
        if not left:
            raise ConfigError(
                f"--cpu-bind map_cpu gives each rank a CPU of its own, but none is left of {format_ids(binding.cpus)} "
                f"for rank {binding.local_rank}: use mask_cpu"
            )
        taken.add(min(left))
        yield min(left)


def check_no_memory(policy: MemoryChoice) -> None:
    if policy not in ("auto", "none"):
        raise ConfigError(f"--memory {policy} needs a plan, and --cpu-bind none makes none: leave one of them out")


def memory_options(config: LaunchConfig, made: Plan, step: Step) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    """Return srun's memory binding, only where a policy is asked for: it kills what needs more than its node has.

    Raises StrictError where `strict` and it must be left out, as a rank has no node with memory that it may use.
    """
    policy = config.memory_policy
    if policy in ("auto", "none"):
        return (), ()
    if policy == "interleave":
        raise ConfigError("srun cannot interleave memory: use --memory membind or preferred, or leave it out")
    if step.mem_bind:
        raise ConfigError(f"--mem-bind and --memory {policy} do not go together: leave one of them out")
    lacking = [binding.local_rank for binding in made.processes if not binding.memory_nodes]
    if lacking:
        dropped = note("srun-memory-dropped", policy=policy, ranks=format_ids(lacking))
        if config.strict:
            raise StrictError.of(dropped)
        return (), (dropped,)
    several = next((binding for binding in made.processes if len(binding.memory_nodes) > 1), None)
    if several:
        raise ConfigError(
            f"rank {several.local_rank} has the nodes {format_ids(several.memory_nodes)}, but srun's map_mem gives "
            "each rank one: leave --memory out"
        )
    nodes = ",".join(str(binding.memory_nodes[0]) for binding in made.processes)
    return (f"--mem-bind={'prefer,' if policy == 'preferred' else ''}map_mem:{nodes}",), ()


def step_options(machine: Machine, ranks: int, step: Step) -> Iterator[str]:
    """Yield what makes the step hold all CPUs of the host, or of the allocation on it, which binding to nodes needs."""
    part = part_of_host(machine, step)
    cpus = step.allocated_cpus if part and step.allocated_cpus else len(machine.online)
    whose = "allocation's" if part else "host's"
    if step.cpus_per_task:
        name, value = step.cpus_per_task
        each = number(value)
        if each is not None and each * ranks < cpus:
            raise ConfigError(
                f"{ranks} tasks of {each} CPUs ({name}) do not hold the {whose} {cpus} CPUs, which a binding needs: "
                f"leave {name} out, or pass --cpu-bind none"
            )
    if step.inside and not step.exclusive:
        if not step.whole:
            yield "--whole"
        return
    if not step.exclusive and not step.whole:  # srun takes not both
        yield "--exclusive"
    if not step.cpus_per_task:
        if step.cpus_per_gpu:
            raise ConfigError(
                f"{step.cpus_per_gpu} does not go with --cpus-per-task, by which a step holds all CPUs: "
                + ("leave --exclusive out" if step.inside else f"leave {step.cpus_per_gpu} out, or {WHOLE_JOB}")
            )
        if cpus % ranks:
            advice = "leave --exclusive out" if step.inside else WHOLE_JOB
            raise ConfigError(
                f"the {whose} {cpus} CPUs do not divide by {ranks} tasks, so that a step cannot hold them all: {advice}"
            )
        yield f"--cpus-per-task={cpus // ranks}"


def task_options(ranks: int | None, step: Step) -> Iterator[str]:
    """Yield the number of tasks: an allocation's own number (SLURM_NTASKS) would win over ``--ntasks-per-node``."""
    if ranks is None:
        return
    yield f"--ntasks-per-node={ranks}"
    if step.inside and step.hosts and not step.ntasks:
        yield f"--ntasks={ranks * step.hosts}"
