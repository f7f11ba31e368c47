"""The nodes of each gpu index: from the user's lists, the visible GPUs, or ranks spread over the nodes.

Example: on a DGX A100 in NPS4 the entries' nodes are (3,), (3,), (1,), (1,), (7,), (7,), (5,), (5,).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from numa_launch.config import LaunchConfig, named
from numa_launch.errors import ConfigError
from numa_launch.idsets import format_ids, parse_ids
from numa_launch.machine.gpu import Gpu
from numa_launch.machine.model import Machine
from numa_launch.reasons import Note, note


class Entry(NamedTuple):
    """What a gpu index stands for.

    `nodes` are None where the GPU's node is unknown. `cpus` is the user's list. `own_node` is the GPU's own
    where that has no CPUs and `nodes` holds the nearest that has; `reasons` say so. `absent` is the number of an
    assigned GPU that is not there.
    """

    nodes: tuple[int, ...] | None
    cpus: frozenset[int] | None = None
    own_node: int | None = None
    reasons: tuple[Note, ...] = ()
    absent: int | None = None


class Entries(NamedTuple):
    """The entries by gpu index, and in words what there are how many of."""

    entries: tuple[Entry, ...]
    counted: str

    @property
    def size(self) -> int:
        return len(self.entries)


def entries_of(machine: Machine, config: LaunchConfig, spread_ranks: int | None) -> Entries:
    """Return the entry of each gpu index; raises ConfigError where the user names a node without CPUs or none at all.

    With assigned_physical_gpu_ids a gpu index counts those ids, each the number of a visible GPU and of its entry.
    """
    entries = all_entries(machine, config, spread_ranks)
    ids = config.assigned_physical_gpu_ids
    if ids is None or spread_ranks is not None:
        return entries
    chosen = tuple(entries.entries[i] if i < entries.size else Entry(None, absent=i) for i in ids)
    return Entries(chosen, f"{named('assigned_physical_gpu_ids')} has {len(ids)} entries and {entries.counted}")


def all_entries(machine: Machine, config: LaunchConfig, spread_ranks: int | None) -> Entries:
    lists = [parse_ids(text) for text in config.numa_bind_cpus or ()]
    if config.numa_bind_nodes is not None:
        check_nodes(machine, config.numa_bind_nodes)
        cpus: Sequence[frozenset[int] | None] = lists or [None] * len(config.numa_bind_nodes)
        made = [Entry((node,), own) for node, own in zip(config.numa_bind_nodes, cpus, strict=True)]
        return Entries(tuple(made), f"{named('numa_bind_nodes')} has {len(made)} entries")
    of_gpus = [gpu_entry(machine, i, gpu) for i, gpu in enumerate(machine.visible_gpus)]
    if lists:
        of_lists = tuple(
            listed_entry(machine, cpus, of_gpus[i] if i < len(of_gpus) else None) for i, cpus in enumerate(lists)
        )
        return Entries(of_lists, f"{named('numa_bind_cpus')} has {len(lists)} entries")
    if spread_ranks is not None:
        return Entries(spread(machine, spread_ranks), f"--map rank spreads {spread_ranks} ranks")
    return Entries(tuple(of_gpus), f"{len(of_gpus)} GPUs are visible")


def check_nodes(machine: Machine, nodes: list[int]) -> None:
    for node in nodes:
        if node not in machine.nodes_with_cpus:
            there = node in machine.node_of_id
            problem = "has no CPUs" if there else "does not exist"
            raise ConfigError(
                f"{named('numa_bind_nodes')}: node {node} {problem}; the nodes with CPUs are "
                f"{format_ids(machine.nodes_with_cpus)}"
            )


def gpu_entry(machine: Machine, index: int, gpu: Gpu) -> Entry:
    if gpu.node is None:
        return Entry(None)
    if machine.node_of_id[gpu.node].cpus:
        return Entry((gpu.node,))
    if not machine.nodes_with_cpus:
        return Entry(None)
    nearest = nearest_node(machine, gpu.node)
    return Entry(
        (nearest,),
        own_node=gpu.node,
        reasons=(note("nearest-node", index=index, node=gpu.node, nearest=nearest),),
    )


def nearest_node(machine: Machine, node: int) -> int:
    """Return the node with CPUs nearest by the kernel's distances, the lowest id on a tie or where none is known."""
    row = machine.distances.get(node, {})
    return min(machine.nodes_with_cpus, key=lambda other: (row.get(other, 255), other))


def listed_entry(machine: Machine, cpus: frozenset[int], of_gpu: Entry | None) -> Entry:
    """Return the entry of a CPU list without a node list: its GPU's node, else the nodes of its own CPUs."""
    if of_gpu and of_gpu.nodes is not None:
        return Entry(of_gpu.nodes, cpus, of_gpu.own_node, of_gpu.reasons)
    return Entry(machine.nodes_of(cpus), cpus)


def spread(machine: Machine, ranks: int) -> tuple[Entry, ...]:
    """Return the nodes of `ranks` ranks spread in order over the nodes with usable CPUs, several each where few."""
    nodes = [node.id for node in machine.nodes if machine.usable_cpus_of(node.id)]
    starts = [rank * len(nodes) // ranks for rank in range(ranks + 1)]
    return tuple(Entry(tuple(nodes[start : max(start + 1, end)])) for start, end in pairwise(starts))
