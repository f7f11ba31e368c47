"""One process's binding: from nodes and CPU lists to what it may really use, each change recorded as a reason.

Example: node 3 has CPUs 48-63 of which this process may use 50-63: ``--physcpubind=50-63`` and ``node-narrowed``.
What numactl refuses was seen with 2.0.16 on kernels 6.1 and 6.18; see numactl(8).
"""

from collections.abc import Sequence

from numa_launch.config import LaunchConfig
from numa_launch.idsets import format_ids, union
from numa_launch.machine.model import Machine
from numa_launch.plan.entries import Entry
from numa_launch.plan.model import Binding, MemoryPolicy
from numa_launch.reasons import Note, note


def bind(machine: Machine, config: LaunchConfig, target: Binding, entries: Sequence[Entry]) -> Binding:
    """Return `target` with what to set on it: a worker's one entry, or an EngineCore's workers' entries."""
    nodes = tuple(sorted({node for entry in entries for node in entry.nodes or ()}))
    reasons = [reason for entry in entries for reason in entry.reasons]
    if target.kind == "worker" and entries[0].cpus is not None:
        cpus, by_node = entries[0].cpus & machine.usable_cpus, False
        if cpus != entries[0].cpus:
            reasons.append(note("cpus-narrowed", asked=format_ids(entries[0].cpus), usable=format_ids(cpus) or "none"))
    else:
        listed = union(entry.cpus or () for entry in entries) & machine.usable_cpus
        has_lists = config.numa_bind_cpus is not None
        cpus, by_node, cpu_reasons = cpus_of_nodes(machine, nodes, use_priority=not has_lists, also=listed)
        reasons += cpu_reasons
    if not cpus:
        return target._replace(reasons=(not_allowed(machine, nodes, entries),))
    memory_nodes, memory_reasons = memory_of_nodes(machine, config, nodes)
    return target._replace(
        nodes=nodes,
        cpus=cpus,
        by_node=by_node,
        memory_nodes=memory_nodes,
        memory_policy=memory_policy(config, len(memory_nodes)),
        reasons=tuple(reasons + memory_reasons),
    )


def cpus_of_nodes(
    machine: Machine, nodes: Sequence[int], use_priority: bool, also: frozenset[int]
) -> tuple[frozenset[int], bool, list[Note]]:
    """Return the CPUs to use of these nodes, whether numactl may be given the nodes instead, and the reasons.

    Of each node they are its usable priority cores, or where it has none all its usable CPUs. `also` are CPUs outside
    the nodes to cover as well.
    """
    whole = union(machine.node_of_id[node].cpus for node in nodes)
    priority = machine.priority_cpus if use_priority and machine.priority_cpus & machine.usable_cpus & whole else None
    wanted = union(of_node(machine.node_of_id[node].cpus, priority) for node in nodes)
    cpus = union(of_node(machine.usable_cpus_of(node), priority) for node in nodes)
    refused = cannot_name_nodes(machine, nodes)
    reasons = []
    if lost := wanted - machine.usable_cpus:
        why = f"this process may not use {format_ids(lost)} of them"
        reasons.append(note("node-narrowed", nodes=format_ids(nodes), why=why))
    elif refused and not priority:
        reasons.append(note("node-narrowed", nodes=format_ids(nodes), why=refused))
    if not machine.has_node_directory:
        reasons.append(note("no-node-directory"))
    if priority:
        reasons.append(note("priority-cores", cpus=format_ids(cpus & priority), nodes=format_ids(nodes)))
    outside = also - whole
    if outside:
        reasons.append(note("covers-workers", cpus=format_ids(outside)))
    by_node = cpus == whole and not priority and not outside and not refused and machine.has_node_directory
    return cpus | outside, by_node, reasons


def of_node(cpus: frozenset[int], priority: frozenset[int] | None) -> frozenset[int]:
    """Return the priority cores among a node's CPUs, all of them where it has none."""
    return (cpus & priority or cpus) if priority else cpus


def cannot_name_nodes(machine: Machine, nodes: Sequence[int]) -> str | None:
    """Return why ``numactl --cpunodebind`` would refuse these nodes, None where it takes them."""
    for node in nodes:
        if not machine.has_memory(node):
            return f"node {node} has no memory and numactl --cpunodebind refuses such nodes"
        if not machine.may_use_memory_of(node):
            return f"this process may not use the memory of node {node} and numactl --cpunodebind refuses such nodes"
    return None


def memory_of_nodes(machine: Machine, config: LaunchConfig, nodes: Sequence[int]) -> tuple[tuple[int, ...], list[Note]]:
    """Return the nodes to take memory from, and why others are left out."""
    if config.memory_policy == "none" or not machine.has_node_directory:
        return (), []
    kept, reasons = [], []
    for node in nodes:
        if not machine.has_memory(node):
            reasons.append(note("node-without-memory", node=node))
        elif not machine.may_use_memory_of(node):
            reasons.append(note("memory-not-allowed", node=node))
        else:
            kept.append(node)
    return tuple(kept), reasons


def memory_policy(config: LaunchConfig, count: int) -> MemoryPolicy | None:
    """Return the policy for memory on `count` nodes."""
    if config.memory_policy == "none" or not count:
        return None
    if config.memory_policy == "auto":
        choice: MemoryPolicy = "membind" if config.mode == "explicit" else "preferred"
    else:
        choice = config.memory_policy
    return "preferred-many" if choice == "preferred" and count > 1 else choice


def not_allowed(machine: Machine, nodes: Sequence[int], entries: Sequence[Entry]) -> Note:
    """Return the reason for a process none of whose CPUs may be used."""
    listed = union(entry.cpus or () for entry in entries)
    where = f"node {format_ids(nodes)}" if nodes else "any node"
    if listed:
        where = f"the CPU list {format_ids(listed)}" + (f" (node {format_ids(nodes)})" if nodes else "")
    return note("cpus-not-allowed", where=where, allowed=format_ids(machine.usable_cpus) or "none")
