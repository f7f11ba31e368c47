"""Every decision's code and its sentence, in one table: for the log, ``--json``, the README and errors alike.

Example: ``note("single-node").message``. A sentence says what is so, and behind it what to do about it.
"""

from typing import NamedTuple


class Note(NamedTuple):
    """Something that the user should know: a stable code, one sentence, and what in it says what to do."""

    code: str
    message: str
    fix: str = ""

    @property
    def what(self) -> str:
        """What is so, without what to do about it."""
        return self.message.removesuffix(self.fix).rstrip(";: ") if self.fix else self.message


Sentence = str | tuple[str, str]
"""What is so; or what is so, and what to do about it."""

SKIP: dict[str, Sentence] = {
    "disabled": (
        "binding is switched off by {by}",
        "remove that to bind",
    ),
    "start-method": (
        "{what} started by {method}, which cannot be bound from outside",
        "use the spawn start method, or call numa_launch.bind_current_process in it",
    ),
    "executor": (
        "workers of {field}={value} are started elsewhere",
        "call numa_launch.bind_current_process in each, or pass --bind (numa_bind=True)",
    ),
    "device-ids": (
        "assigned_physical_gpu_ids may follow another numbering than the visible GPUs'",
        "pass --bind (numa_bind=True) where they count visible GPUs, or --numa-nodes (numa_bind_nodes)",
    ),
    "numactl-missing": (
        "numactl is not on PATH and the built-in backend is not to be used (--backend numactl, or a frozen program)",
        "install the package numactl (apt-get install numactl or dnf install numactl), or leave out --backend numactl",
    ),
    "no-gpu": (
        "no GPU is visible here{because}",
        "{unhide}pass --numa-nodes (numa_bind_nodes), or --map rank with --nproc or under a launcher that sets the "
        "number of ranks",
    ),
    "single-node": (
        "only one node has CPUs, so every CPU is as near as another",
        "no binding is needed (--bind binds to that node all the same, --numa-cpus to single CPUs)",
    ),
    "affinity-constrained": (
        "this process was given only CPUs {affinity} of {allowed} (by taskset, srun or mpirun), which is respected",
        "start it without that (mpirun --bind-to none), or pass --bind to bind within them",
    ),
    "affinity-unknown": (
        "the CPUs this process may use cannot be read",
        "allow sched_getaffinity, or pass --bind",
    ),
    "mempolicy-unknown": (
        "the memory policy of this process cannot be read from /proc/self/numa_maps",
        "make /proc readable, or pass --bind",
    ),
    "mempolicy-set": (
        "memory policy {policy} was set before (by numactl or srun), which is respected",
        "start it without that, or pass --bind",
    ),
    "gpu-node-unknown": (
        "the node of GPU {gpus} is unknown, as no source that could be asked says{because}",
        "pass --numa-nodes (numa_bind_nodes) with one node per GPU",
    ),
    "gpu-index-out-of-range": (
        "{process} needs entry {index} (the first is 0), but {counted}",
        "lower --tp, --pp, --dp-local, --nproc or --ntasks-per-node, show it more GPUs, or pass --numa-nodes "
        "(numa_bind_nodes) with an entry for each",
    ),
    "node-without-cpus": (
        "GPU {index} is on node {node}, which has no CPUs",
        "pass --bind to take the nearest node that has, or --numa-nodes",
    ),
    "cpus-not-allowed": (
        "no CPU of {where} may be used by this process (it may use {allowed})",
        "allow it CPUs there (taskset; mpirun --bind-to none; Docker: --cpuset-cpus; Kubernetes: the kubelet's CPU "
        "manager; Slurm: --exclusive), or name others in --numa-nodes or --numa-cpus",
    ),
    "probe-failed": "nothing can be bound here: {why}",
}
"""Why auto mode stays unbound: the first that holds, in this order, is the plan's skip reason."""

REASONS: dict[str, Sentence] = {
    "node-narrowed": "the CPUs of node {nodes} are named one by one, as {why}",
    "no-node-directory": "this kernel has no NUMA nodes, so CPUs are named one by one and memory is left alone",
    "cpus-narrowed": "of the CPU list {asked} this process may use only {usable}",
    "node-without-memory": "node {node} has no memory, so it is left out of the memory binding",
    "memory-not-allowed": (
        "this process may not take memory from node {node} (Mems_allowed), so it is left out of the memory binding",
        "allow it that memory (Docker: --cpuset-mems; Kubernetes: the kubelet's memory manager; Slurm: --exclusive)",
    ),
    "nearest-node": "GPU {index} is on node {node}, which has no CPUs: node {nearest} is the nearest that has",
    "priority-cores": "the priority cores {cpus} of node {nodes} are used (Priority Core Turbo)",
    "covers-workers": "CPUs {cpus} are added, as workers have them in their CPU lists",
}
"""What a process's binding differs in from the plain rule."""

WARNINGS: dict[str, Sentence] = {
    "overlapping-nodes": (
        "several nodes list the same CPUs ({cpus}), a firmware error that makes their binding meaningless",
        "update the firmware, or pass --no-bind",
    ),
    "cuda-device-order": (
        "the GPUs are of different models, so CUDA may count them in another order than PCI's",
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
    ),
    "ze-flat-hierarchy": (
        "ZE_AFFINITY_MASK is read as whole devices, but ZE_FLAT_DEVICE_HIERARCHY=FLAT counts tiles",
        "set ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE, or pass --numa-nodes",
    ),
    "driver-silent": "what {library} knows of {gpus} is unknown, because {problem}",
    "gpu-node-disagreement": (
        "of GPU {gpus}, {said}: node {node} is taken, as {why}",
        "if that is wrong, pass --numa-nodes (numa_bind_nodes)",
    ),
    "visible-device-unknown": (
        "{variable} names {entry}, which is no known GPU here",
        "use an index, or pass --numa-nodes",
    ),
    "nothing-started": (
        "no multiprocessing child was started inside configure_subprocess",
        "start workers inside the block (a ProcessPoolExecutor starts its own at the first submit), or call "
        "numa_launch.bind_current_process in each",
    ),
    "blocks-overlap": (
        "blocks of two coroutines overlap, so what is started while both are open stays unbound",
        "do not await inside configure_subprocess",
    ),
    "fork-server": (
        "multiprocessing's fork server was started inside configure_subprocess, so it is bound, with all that it "
        "starts",
        "start it before, or use a spawn context",
    ),
    "worker-not-started": (
        "the worker of rank {rank} could not be started, so the pool is broken ({why})",
        "mend that and make a fresh process_pool, whose ranks are bound the same",
    ),
    "binding-dropped": "{what}: {why}",
    "wrapper-not-executable": (
        "{path} may not be executed, so workers start unbound",
        "{fix}",
    ),
    "mpi-launcher": (
        "binding explicitly inside an MPI or PMI task ({variable} is set)",
        "let the launcher bind instead (mpirun --map-by numa --bind-to numa, srun --cpu-bind)",
    ),
    "rank-ldom-mismatch": (
        "srun's rank_ldom binds the ranks to nodes {slurm}, but the plan has {planned}",
        "use --cpu-bind auto",
    ),
    "srun-memory-dropped": (
        "--memory {policy} is left out for all ranks, as srun's map_mem needs a node for each and rank {ranks} has "
        "none with memory that it may use",
        "leave --memory out",
    ),
    "login-node": (
        "this is the plan of the host that srun is called on, which may differ from the hosts that the tasks run on",
        "call it inside an allocation (sbatch), or plan for a captured compute node (--root with --dry-run)",
    ),
    "bind-unreadable": (
        "NUMA_LAUNCH_BIND={value} is neither 0 nor 1 and is ignored",
        "set it to 0 to switch binding off",
    ),
    "rank-unreadable": (
        "{variable}={value} is no rank and is ignored",
        "pass --rank",
    ),
}
"""What else the user is warned of."""

RAY: dict[str, Sentence] = {
    "ray-unknown": (
        "this process is no worker of a Ray cluster, so nothing says which GPUs are its own",
        "call numa_launch.ray.bind_current_actor in an actor or task, or numa_launch.bind_current_process with a rank",
    ),
    "actor-without-gpu": (
        "Ray gave this actor or task no GPU",
        "pass num_gpus to it (ray.remote or options) to bind it to the node of its GPU",
    ),
    "actor-gpu-unknown": (
        "Ray gave this actor or task GPU {ids}, which {why}",
        "compare num_gpus of ray start with `numa-launch topo`, or pass numa_bind_nodes with one node per GPU",
    ),
}
"""Why an actor or task of Ray stays unbound."""

SENTENCES = {**SKIP, **REASONS, **WARNINGS, **RAY}


def why_unbound(reason: Note) -> str:
    """Return the sentence that says that a process is not bound, and why."""
    return f"staying unbound ({reason.code}): {reason.message}"


def note(code: str, **values: object) -> Note:
    """Return the note of a code, its sentence filled in."""
    sentence = SENTENCES[code]
    if isinstance(sentence, str):
        return Note(code, sentence.format(**values))
    what, fix = (part.format(**values) for part in sentence)
    return Note(code, f"{what}{';' if fix.startswith('if ') else ':'} {fix}", fix)


def counted(count: int, word: str) -> str:
    """Return ``1 node``, ``2 nodes`` or ``3 processes``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}{'es' if word.endswith('s') else 's'}"
