"""When auto mode stays unbound: the first condition that is not met, with the fix.

Example: ``skip_reason(machine, LaunchConfig(), Circumstances()).code == "single-node"`` on a laptop.
"""

from collections.abc import Iterable

from numa_launch.config import LaunchConfig
from numa_launch.idsets import format_ids
from numa_launch.machine.model import Machine
from numa_launch.plan.model import Circumstances
from numa_launch.reasons import Note, note


def skip_reason(machine: Machine, config: LaunchConfig, circumstances: Circumstances) -> Note | None:
    """Return why nothing is bound in mode auto, as far as config, host and limits tell; None where they allow it.

    What depends on single processes (gpu-index-out-of-range and after) is left to ``decide``.
    """
    return (
        config_reason(config, circumstances)
        or host_reason(machine, circumstances)
        or limits_reason(machine)
        or gpu_reason(machine, circumstances)
    )


def config_reason(config: LaunchConfig, circumstances: Circumstances) -> Note | None:
    if circumstances.start_method != "spawn":
        return note("start-method", what="workers are", method=circumstances.start_method)
    if config.distributed_executor_backend not in ("mp", "uni") and not circumstances.binds_itself:
        value = config.distributed_executor_backend
        return note("executor", field="distributed_executor_backend", value=value)
    if config.data_parallel_backend != "mp" and not circumstances.binds_itself:
        return note("executor", field="data_parallel_backend", value=config.data_parallel_backend)
    if config.assigned_physical_gpu_ids is not None:
        return note("device-ids")
    return None


def host_reason(machine: Machine, circumstances: Circumstances) -> Note | None:
    if circumstances.numactl_missing:
        return note("numactl-missing")
    if not machine.visible and circumstances.spread_ranks is None:
        return note("no-gpu", because=why_no_gpu(machine))
    if len(machine.nodes_with_cpus) < 2:
        return note("single-node")
    return None


def limits_reason(machine: Machine) -> Note | None:
    limits = machine.limits
    allowed = machine.online if limits.cpuset is None else machine.online & limits.cpuset
    if limits.affinity is None:
        return note("affinity-unknown")
    if not allowed - limits.isolated <= limits.affinity:
        return note("affinity-constrained", affinity=format_ids(limits.affinity), allowed=format_ids(allowed))
    if limits.policy is None:
        return note("mempolicy-unknown")
    if limits.policy != "default":
        return note("mempolicy-set", policy=limits.policy)
    return None


def gpu_reason(machine: Machine, circumstances: Circumstances) -> Note | None:
    if circumstances.spread_ranks is not None:
        return None
    unknown = [i for i, gpu in enumerate(machine.visible_gpus) if gpu.node is None]
    return gpu_node_unknown(machine, unknown) if unknown else None


def gpu_node_unknown(machine: Machine, indices: Iterable[int]) -> Note:
    """Return what is to be said of visible GPUs whose node no source knows."""
    return note("gpu-node-unknown", gpus=format_ids(indices), because=f" ({machine.gap})" if machine.gap else "")


def why_no_gpu(machine: Machine) -> str:
    hidden = f"{machine.visible_by} names none of the {len(machine.gpus)} there are" if machine.gpus else None
    why = "; ".join(filter(None, (hidden, machine.gap)))
    return f" ({why})" if why else ""
