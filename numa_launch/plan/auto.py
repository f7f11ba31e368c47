"""When auto mode stays unbound: the first condition that is not met, with the fix.

Example: ``skip_reason(machine, LaunchConfig(), Circumstances()).code == "single-node"`` on a laptop.
"""

from collections.abc import Iterable, Iterator

from numa_launch.config import LaunchConfig
from numa_launch.idsets import format_ids
from numa_launch.machine.model import Machine
from numa_launch.plan.model import Circumstances
from numa_launch.reasons import Note, note


def skip_reason(machine: Machine, config: LaunchConfig, circumstances: Circumstances) -> Note | None:
    """Return why nothing is bound in mode auto, as far as config, host and limits tell; None where they allow it.

    What depends on single processes (gpu-index-out-of-range and after) is left to ``decide``.
    """
    return next(unmet(machine, config, circumstances), None)


def unmet(machine: Machine, config: LaunchConfig, circumstances: Circumstances) -> Iterator[Note]:
    """Yield every condition of mode auto that is not met, in the order of the table of reasons."""
    yield from config_reasons(config, circumstances)
    yield from host_reasons(machine, circumstances)
    yield from limits_reasons(machine)
    unknown = [i for i, gpu in enumerate(machine.visible_gpus) if gpu.node is None]
    if unknown and circumstances.spread_ranks is None:
        yield gpu_node_unknown(machine, unknown)


def config_reasons(config: LaunchConfig, circumstances: Circumstances) -> Iterator[Note]:
    if circumstances.start_method != "spawn":
        yield note("start-method", what="workers are", method=circumstances.start_method)
    if config.distributed_executor_backend not in ("mp", "uni") and not circumstances.binds_itself:
        value = config.distributed_executor_backend
        yield note("executor", field="distributed_executor_backend", value=value)
    if config.data_parallel_backend != "mp" and not circumstances.binds_itself:
        yield note("executor", field="data_parallel_backend", value=config.data_parallel_backend)
    if config.assigned_physical_gpu_ids is not None:
        yield note("device-ids")


def host_reasons(machine: Machine, circumstances: Circumstances) -> Iterator[Note]:
    if circumstances.numactl_missing:
        yield note("numactl-missing")
    if not machine.visible and circumstances.spread_ranks is None:
        yield no_gpu(machine)
    if len(machine.nodes_with_cpus) < 2:
        yield note("single-node")


def limits_reasons(machine: Machine) -> Iterator[Note]:
    limits, allowed = machine.limits, machine.cpuset_cpus
    if limits.affinity is None:
        yield note("affinity-unknown")
    elif not allowed - limits.isolated <= limits.affinity:
        yield note("affinity-constrained", affinity=format_ids(limits.affinity), allowed=format_ids(allowed))
    if limits.policy is None:
        yield note("mempolicy-unknown")
    elif limits.policy != "default":
        yield note("mempolicy-set", policy=limits.policy)


def gpu_node_unknown(machine: Machine, indices: Iterable[int]) -> Note:
    """Return what is to be said of visible GPUs whose node no source knows."""
    return note("gpu-node-unknown", gpus=format_ids(indices), because=f" ({machine.gap})" if machine.gap else "")


def no_gpu(machine: Machine) -> Note:
    """Return what is to be said where no GPU is visible."""
    hidden = f"{machine.visible_by} names none of the {len(machine.gpus)} there are" if machine.gpus else None
    why = "; ".join(filter(None, (hidden, machine.gap)))
    unhide = f"correct or unset {machine.visible_by}, or " if machine.gpus else ""
    return note("no-gpu", because=f" ({why})" if why else "", unhide=unhide)
