"""numactl's arguments for a binding, and what they leave on a process.

Example: ``numactl_args(binding) == ["--cpunodebind=3", "--membind=3"]``. Pure functions; numactl(8).
"""

from numa_launch.idsets import format_ids
from numa_launch.plan.model import Binding

POLICY_TEXT = {
    "membind": "bind",
    "preferred": "prefer",
    "preferred-many": "prefer (many)",
    "interleave": "interleave",
}
"""numactl's option → how the kernel shows the policy in numa_maps."""


def numactl_args(binding: Binding) -> list[str]:
    """Return the arguments, none for an unbound process."""
    return cpu_args(binding) + memory_args(binding) if binding.bound else []


def cpu_args(binding: Binding) -> list[str]:
    if binding.by_node:
        return [f"--cpunodebind={','.join(map(str, binding.nodes))}"]
    return physcpu_args(binding)


def physcpu_args(binding: Binding) -> list[str]:
    return [f"--physcpubind={format_ids(binding.cpus)}"]


def memory_args(binding: Binding) -> list[str]:
    if binding.memory_policy is None:
        return []
    return [f"--{binding.memory_policy}={','.join(map(str, binding.memory_nodes))}"]


def candidates(binding: Binding) -> list[list[str]]:
    """Return the argument lists to try in turn: full, without memory, without memory and by CPU."""
    tries = [numactl_args(binding), cpu_args(binding), physcpu_args(binding)]
    return [args for i, args in enumerate(tries) if args not in tries[:i]]


def policy_text(binding: Binding) -> str | None:
    """Return the policy that the full arguments leave, as numa_maps shows it; None: they leave it alone."""
    if binding.memory_policy is None:
        return None
    return f"{POLICY_TEXT[binding.memory_policy]}:{format_ids(binding.memory_nodes)}"
