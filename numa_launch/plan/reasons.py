"""Every decision's code and its sentence, in one table: for the log, ``--json``, the README and errors alike.

Example: ``note("single-node").message``. The first codes, in this order, are why auto mode stays unbound.
"""

from numa_launch.machine.model import Note

SKIP = {
    "disabled": "binding is switched off by {by}: remove that to bind",
    "start-method": "workers start by {method}, which cannot be bound from outside: use the spawn start method, or "
    "call numa_launch.bind_current_process in each worker",
    "executor": "workers of {field}={value} are started elsewhere: call numa_launch.bind_current_process in each, "
    "or pass --bind (numa_bind=True)",
    "device-ids": "assigned_physical_gpu_ids may follow another numbering than the visible GPUs': pass --bind "
    "(numa_bind=True) where they count visible GPUs, or --numa-nodes (numa_bind_nodes)",
    "numactl-missing": "numactl is not on PATH: install the package numactl (apt-get or dnf install numactl)",
    "no-gpu": "no GPU is visible here{because}: pass --numa-nodes (numa_bind_nodes), or --map rank to spread ranks "
    "over the nodes",
    "single-node": "only one node has CPUs, so every CPU is as near as another: nothing to do (--numa-cpus binds to "
    "single CPUs all the same)",
    "affinity-constrained": "this process was given only CPUs {affinity} of {allowed} (by taskset, srun or mpirun), "
    "which is respected: start it without that, or pass --bind to bind within them",
    "affinity-unknown": "the CPUs this process may use cannot be read: allow sched_getaffinity, or pass --bind",
    "mempolicy-unknown": "the memory policy of this process cannot be read from /proc/self/numa_maps: make /proc "
    "readable, or pass --bind",
    "mempolicy-set": "memory policy {policy} was set before (by numactl or srun), which is respected: start it "
    "without that, or pass --bind",
    "gpu-node-unknown": "the node of GPU {gpus} is unknown (neither the firmware nor the driver says): pass "
    "--numa-nodes (numa_bind_nodes) with one node per GPU",
    "gpu-index-out-of-range": "{process} needs number {index} (the first is 0), but {counted}: lower --tp, --pp or "
    "--dp-local, or show it more GPUs",
    "node-without-cpus": "GPU {index} is on node {node}, which has no CPUs: pass --bind to take the nearest node "
    "that has, or --numa-nodes",
    "cpus-not-allowed": "no CPU of {where} may be used by this process (allowed: {allowed}): allow it CPUs there "
    "(taskset, cpuset, --cpuset-cpus), or pass other nodes in --numa-nodes",
    "probe-failed": "numactl cannot bind here, so no process is bound: {why}",
}
"""Why auto mode stays unbound: the first that holds, in this order, is the plan's skip reason."""

REASONS = {
    "node-narrowed": "the CPUs of node {nodes} are named one by one, as {why}",
    "no-node-directory": "this kernel has no NUMA nodes, so CPUs are named one by one and memory is left alone",
    "cpus-narrowed": "of the CPU list {asked} this process may use only {usable}",
    "node-without-memory": "node {node} has no memory, so it is left out of the memory binding",
    "memory-not-allowed": "this process may not take memory from node {node} (Mems_allowed), so it is left out of "
    "the memory binding",
    "nearest-node": "GPU {index} is on node {node}, which has no CPUs: node {nearest} is the nearest that has",
    "priority-cores": "the priority cores {cpus} of node {nodes} are used (Priority Core Turbo)",
    "covers-workers": "CPUs {cpus} are added, as workers have them in their CPU lists",
}
"""What a process's binding differs in from the plain rule."""

WARNINGS = {
    "start-method": "{process} was started by {method}, which configure_subprocess cannot bind: use a spawn context, "
    "or call numa_launch.bind_current_process in it",
    "nothing-started": "no multiprocessing child is left that was started inside configure_subprocess: start workers "
    "inside the block (a ProcessPoolExecutor starts its own at the first submit), or call "
    "numa_launch.bind_current_process in each",
    "blocks-overlap": "blocks of two coroutines overlap, so what is started while both are open stays unbound: do not "
    "await inside configure_subprocess",
    "fork-server": "multiprocessing's fork server was started inside configure_subprocess, so it is bound, with all "
    "that it starts: start it before, or use a spawn context",
    "binding-dropped": "{what}: {why}",
    "wrapper-not-executable": "{path} may not be executed, so workers start unbound: {fix}",
    "mpi-launcher": "binding explicitly inside an MPI or PMI task ({variable} is set): let the launcher bind instead "
    "(numa-launch srun, mpirun --map-by numa --bind-to numa)",
    "rank-unreadable": "{variable}={value} is no rank and is ignored: pass --rank",
}
"""What else the user is warned of."""


def note(code: str, **values: object) -> Note:
    """Return the note of a code of SKIP or REASONS, its sentence filled in."""
    return Note(code, (SKIP.get(code) or REASONS[code]).format(**values))


def warning(code: str, **values: object) -> Note:
    """Return the note of a code of WARNINGS, its sentence filled in."""
    return Note(code, WARNINGS[code].format(**values))
