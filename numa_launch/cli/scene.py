"""What a picture of a machine shows, before it is drawn: a box for each node, and GPUs by node.

Example: ``boxes_of(machine)[3].title == "node 3"``; the 34 empty nodes of a GB200 are one box, ``nodes 2-35``.
"""

from typing import NamedTuple

from numa_launch.idsets import format_ids
from numa_launch.machine.gpu import Gpu
from numa_launch.machine.model import Machine


class ShownGpu(NamedTuple):
    """A GPU of the host; `gpu_index` None: it is not visible."""

    gpu_index: int | None
    gpu: Gpu

    @property
    def label(self) -> str:
        return "hidden" if self.gpu_index is None else str(self.gpu_index)


class Box(NamedTuple):
    """A node, or several without CPUs and GPUs and of equal memory; without `nodes`, the GPUs of no known node.

    `cpus` are its online CPUs, `usable` those that this process may use; `memory_kb` is each node's in KiB, None:
    unknown; `memory_usable`: what memory there is, this process may use.
    """

    nodes: tuple[int, ...]
    cpus: frozenset[int] = frozenset()
    usable: frozenset[int] = frozenset()
    memory_kb: int | None = None
    memory_usable: bool = True
    gpus: tuple[ShownGpu, ...] = ()

    @property
    def title(self) -> str:
        if not self.nodes:
            return "no known node"
        return f"node{'s' if len(self.nodes) > 1 else ''} {format_ids(self.nodes)}"

    @property
    def memory(self) -> str:
        """Its memory in words: ``memory 64.0 GiB each, not yours``."""
        each = " each" if len(self.nodes) > 1 else ""
        return f"memory {memory_text(self.memory_kb)}{each}{'' if self.memory_usable else ', not yours'}"


def shown_gpus(machine: Machine) -> list[ShownGpu]:
    """Return all of the host's GPUs, in PCI order."""
    index_of = {position: index for index, position in enumerate(machine.visible)}
    return [ShownGpu(index_of.get(position), gpu) for position, gpu in enumerate(machine.gpus)]


def boxes_of(machine: Machine) -> list[Box]:
    """Return the boxes in the order of their first nodes, that of GPUs of unknown node last."""
    shown = shown_gpus(machine)
    boxes: list[Box] = []
    for node in machine.nodes:
        box = Box(
            nodes=(node.id,),
            cpus=node.cpus,
            usable=machine.usable_cpus_of(node.id),
            memory_kb=node.memory_kb,
            memory_usable=not machine.withholds_memory_of(node.id),
            gpus=tuple(each for each in shown if each.gpu.node == node.id),
        )
        if boxes and is_empty(box) and boxes[-1]._replace(nodes=box.nodes) == box:
            boxes[-1] = boxes[-1]._replace(nodes=(*boxes[-1].nodes, node.id))
        else:
            boxes.append(box)
    nowhere = tuple(each for each in shown if each.gpu.node not in machine.node_of_id)
    return [*boxes, Box((), gpus=nowhere)] if nowhere else boxes


def is_empty(box: Box) -> bool:
    return not box.cpus and not box.gpus


def memory_text(memory_kb: int | None) -> str:
    """Return a node's memory, in GiB, or in MiB where it is little."""
    if not memory_kb:
        return "unknown" if memory_kb is None else "none"
    return f"{memory_kb / 2**20:.1f} GiB" if memory_kb >= 2**19 else f"{memory_kb / 2**10:.0f} MiB"


def columns_for(boxes: int, most: int) -> int:
    """Return how many boxes stand in a row: at most so many, in rows of equal length as far as that goes."""
    rows = -(-boxes // max(1, most))
    return -(-boxes // max(1, rows))
