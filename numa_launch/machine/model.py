"""The machine as data: nodes, GPUs and what this process may use.

Example: ``machine.usable_cpus_of(3)`` is the frozenset of CPUs of node 3 that this process may run on.
Sets of ids are ``frozenset[int]``; text such as ``"0-3"`` exists only in files and arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import NamedTuple

from numa_launch.machine.gpu import Gpu
from numa_launch.reasons import Note


class Node(NamedTuple):
    """A NUMA node of the kernel.

    `cpus` are its online CPUs, none for a memory-only node; `memory_kb` is its size in KiB (meminfo), None: unknown.
    """

    id: int
    cpus: frozenset[int]
    memory_kb: int | None


class Limits(NamedTuple):
    """What this process may use.

    `affinity`: its allowed CPUs, None where they cannot be read. `cpuset`: the CPUs of its cgroup, None where no file
    says. `memory_nodes`: nodes it may take memory from, None: all. `policy`: its memory policy as numa_maps shows it
    (``default``, ``bind:0``), None where it cannot be read. `isolated`: CPUs isolated at boot. Affinity and policy are
    those from before a launcher of ours bound this process; `current_policy` is what it has now.
    """

    affinity: frozenset[int] | None
    cpuset: frozenset[int] | None = None
    memory_nodes: frozenset[int] | None = None
    policy: str | None = "default"
    isolated: frozenset[int] = frozenset()
    current_policy: str | None = "default"


@dataclass(frozen=True)
class Machine:
    """A host, and what this process may use of it.

    `gpus` are all of the host's in PCI order, `visible` the positions in it of those the framework sees, in its
    order; `visible_by` names the variable that chose them (None: none is set). `priority_cpus`: Priority Core Turbo.
    `distances` has the rows of the nodes without CPUs that a GPU names. `has_node_directory` is False on a kernel
    without NUMA, which has one node 0 here. `gap` says why GPUs, or their nodes and UUIDs, may be missing: None where
    the library answered, or there is none to ask.
    """

    nodes: tuple[Node, ...]
    online: frozenset[int]
    limits: Limits
    gpus: tuple[Gpu, ...] = ()
    visible: tuple[int, ...] = ()
    visible_by: str | None = None
    priority_cpus: frozenset[int] = frozenset()
    distances: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    has_node_directory: bool = True
    gap: str | None = None
    notes: tuple[Note, ...] = ()

    def __getstate__(self) -> dict[str, object]:
        """Pickle the fields alone, not what was derived from them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def visible_gpus(self) -> tuple[Gpu, ...]:
        """The visible GPUs, in the framework's order: a gpu index is a position in it."""
        return tuple(self.gpus[i] for i in self.visible)

    @cached_property
    def only_gpu_left(self) -> bool:
        """Whether a variable leaves exactly one GPU visible, as launchers do that hide the other ranks'."""
        return self.visible_by is not None and len(self.visible) == 1

    @cached_property
    def node_of_id(self) -> dict[int, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def nodes_with_cpus(self) -> tuple[int, ...]:
        return tuple(node.id for node in self.nodes if node.cpus)

    @cached_property
    def cpuset_cpus(self) -> frozenset[int]:
        """The online CPUs that the cpuset allows."""
        return self.online if self.limits.cpuset is None else self.online & self.limits.cpuset

    @cached_property
    def usable_cpus(self) -> frozenset[int]:
        """The online CPUs that affinity and cpuset allow."""
        return self.cpuset_cpus if self.limits.affinity is None else self.cpuset_cpus & self.limits.affinity

    @cached_property
    def _usable_of_node(self) -> dict[int, frozenset[int]]:
        return {node.id: node.cpus & self.usable_cpus for node in self.nodes}

    def usable_cpus_of(self, node: int) -> frozenset[int]:
        return self._usable_of_node[node]

    def nodes_of(self, cpus: frozenset[int]) -> tuple[int, ...]:
        """The nodes that have any of these CPUs, ascending."""
        return tuple(node.id for node in self.nodes if not node.cpus.isdisjoint(cpus))

    def has_memory(self, node: int) -> bool:
        return self.node_of_id[node].memory_kb != 0

    def may_use_memory_of(self, node: int) -> bool:
        return self.limits.memory_nodes is None or node in self.limits.memory_nodes

    def withholds_memory_of(self, node: int) -> bool:
        """Whether the node has memory that this process may not use."""
        return self.has_memory(node) and not self.may_use_memory_of(node)
