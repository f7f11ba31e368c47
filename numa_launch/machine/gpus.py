"""The host's GPUs, each with its node: what PCI sysfs and the vendor's library say, reconciled.

Example: ``read_gpus("", nodes, None, ask).gpus[0].node`` is 3 on a DGX A100 in NPS4, with source ``pci-node``.
A new source is one more (source, node) pair in ``node_claims``.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from numa_launch.machine.answers import Answer, read_answer
from numa_launch.machine.gpu import Gpu
from numa_launch.machine.model import Node
from numa_launch.machine.pci import PciDevice, pci_order, read_pci_device, read_pci_gpus
from numa_launch.machine.vendors import VENDORS
from numa_launch.machine.vendors.vendor import DriverGpu, FileFacts, Vendor
from numa_launch.reasons import Note, note

Ask = Callable[[Vendor], Answer]


class Found(NamedTuple):
    """The host's GPUs in PCI order, and what the library `answer`ed, of which vendor.

    `gap` says why GPUs, or something about them, may be missing: ``"NVML: it gave no answer in 10 s: …"``.
    """

    gpus: tuple[Gpu, ...] = ()
    vendor: Vendor | None = None
    answer: Answer = Answer()
    gap: str | None = None
    notes: tuple[Note, ...] = ()


def read_gpus(root: str, nodes: Iterable[Node], vendor: str | None, ask: Ask | None) -> Found:
    """Return the GPUs of `vendor`, else of the first vendor that has any.

    Where the vendor's library answered its GPUs are the list (a container sees only those given to it) and PCI only
    adds nodes; otherwise PCI is the list. `ask` asks the library of this host. None means a capture, which has the
    answer in gpus.json; that then also tells whose GPUs they are.
    """
    index = NodeIndex(nodes)
    names = [vendor] if vendor else list(VENDORS)
    live = ask is not None
    if ask is None:
        answers = captured_answers(root, vendor)
        ask = answers_of(answers)
        names = names if vendor else [name for name in VENDORS if name in answers and answers[name].gpus] or names
    without: list[Found] = []
    for name in names:
        found = gpus_of(root, VENDORS[name], index, ask, live)
        if found.gpus:
            earlier = tuple(note for other in without for note in other.notes)
            return found._replace(notes=earlier + found.notes)
        without.append(found)
    return next((found for found in without if found.gap or found.answer.gpus is not None), without[0])


def not_asked(vendor: Vendor) -> Answer:
    """Answer for a library that is not to be asked."""
    return Answer()


def answers_of(answers: dict[str, Answer]) -> Ask:
    return lambda vendor: answers.get(vendor.name, Answer())


def captured_answers(root: str, vendor: str | None) -> dict[str, Answer]:
    """Return the capture's answer by vendor.

    An entry is of the vendor of the PCI device at its address, else of the one it names, else of the one asked for.
    """
    said, silent = read_answer(root)
    if silent:
        return {silent: said}
    if not said.gpus:
        return dict.fromkeys(VENDORS, said)
    names = {known.pci_id: name for name, known in VENDORS.items()}
    of_vendor: dict[str, tuple[DriverGpu, ...]] = {}
    for gpu in said.gpus:
        device = read_pci_device(root, gpu.bdf) if gpu.bdf else None
        name = names.get(device.vendor_id if device else "", gpu.vendor or vendor or "nvidia")
        of_vendor[name] = (*of_vendor.get(name, ()), gpu)
    return {name: Answer(gpus) for name, gpus in of_vendor.items()}


def gpus_of(root: str, vendor: Vendor, nodes: "NodeIndex", ask: Ask, live: bool) -> Found:
    """Return the vendor's GPUs on this host."""
    pci = read_pci_gpus(root, vendor.pci_id, vendor.classes)
    answer = ask(vendor) if not live or is_here(root, vendor, pci) else Answer()
    if answer.gpus is None:
        facts = vendor.read_facts(root, [device.bdf for device in pci])
        pci = given(root, pci, facts) if live else pci
        said = tuple(DriverGpu(device.bdf) for device in pci)
    else:
        said = placed(answer.gpus, pci)
        facts = vendor.read_facts(root, [gpu.bdf for gpu in said if gpu.bdf])
    devices = {device.bdf: device for device in pci}
    gpus = []
    for gpu in said:
        device = devices.get(gpu.bdf or "") or (read_pci_device(root, gpu.bdf) if gpu.bdf else None)
        gpus.append(reconcile(completed(gpu, facts), device, nodes, vendor))
    return Found(
        gpus=tuple(gpus),
        vendor=vendor,
        answer=answer,
        gap=gap(vendor, answer, pci),
        notes=silence_notes(vendor, answer, said) + disagreement_notes(gpus),
    )


def is_here(root: str, vendor: Vendor, pci: Sequence[PciDevice]) -> bool:
    """Return whether there is a device, or a driver, to ask the vendor's library about."""
    return vendor.library is not None and (
        bool(pci) or any(os.path.lexists(f"{root}{sign}") for sign in vendor.library.signs)
    )


def given(root: str, pci: Sequence[PciDevice], facts: dict[str, FileFacts]) -> tuple[PciDevice, ...]:
    """Return the GPUs without those whose device node this container was not given, where it was given any."""
    node_of = {device.bdf: facts.get(device.bdf, FileFacts()).device_node for device in pci}
    there = {bdf for bdf, node in node_of.items() if node and os.path.lexists(f"{root}{node}")}
    return tuple(device for device in pci if not there or device.bdf in there or node_of[device.bdf] is None)


def placed(said: tuple[DriverGpu, ...], pci: Sequence[PciDevice]) -> tuple[DriverGpu, ...]:
    """Return the library's GPUs in PCI order; those it has no address of are the ones that PCI has left over."""
    known = {gpu.bdf for gpu in said}
    left = [device.bdf for device in pci if device.bdf not in known]
    if len(left) == sum(gpu.bdf is None for gpu in said):
        said = tuple(gpu if gpu.bdf else gpu._replace(bdf=left.pop(0)) for gpu in said)
    return tuple(sorted(said, key=lambda gpu: pci_order(gpu.bdf or ""))) if all(gpu.bdf for gpu in said) else said


def completed(gpu: DriverGpu, facts: dict[str, FileFacts]) -> DriverGpu:
    """Return the GPU with UUID and name from the driver's files where the library did not say."""
    own = facts.get(gpu.bdf or "", FileFacts())
    return gpu._replace(uuid=gpu.uuid or own.uuid, name=gpu.name or own.name)


def gap(vendor: Vendor, answer: Answer, pci: Sequence[PciDevice]) -> str | None:
    """Return why GPUs, or something about them, may be missing; None where the library answered, or there is none."""
    if vendor.library is None or (answer.problem is None and answer.gpus != ()):
        return None
    if answer.problem:
        return f"{vendor.library.name}: {answer.problem}"
    return f"{vendor.library.name} shows none of the {len(pci)} GPUs that PCI has" if pci else None


def silence_notes(vendor: Vendor, answer: Answer, said: Sequence[DriverGpu]) -> tuple[Note, ...]:
    """Return a warning where the library should have answered and did not, of all GPUs or of some."""
    library = vendor.library.name if vendor.library else "the driver"
    problems: dict[str, list[str]] = {}
    for index, gpu in enumerate(said):
        if gpu.problem:
            what = f"GPU {gpu.bdf or index}"
            problems.setdefault(gpu.problem, []).append(f"{what} in part" if gpu.name or gpu.uuid else what)
    if answer.problem and answer.serious:
        problems[answer.problem] = ["the GPUs"]
    return tuple(
        note("driver-silent", library=library, gpus=", ".join(gpus), problem=problem)
        for problem, gpus in problems.items()
    )


def reconcile(said: DriverGpu, pci: PciDevice | None, nodes: "NodeIndex", vendor: Vendor) -> Gpu:
    """Return the GPU with the node of the first source that names one with CPUs, else one without, else unknown."""
    claims = tuple((source, node) for source, node in node_claims(said, pci, nodes, vendor) if node in nodes.ids)
    best = [claim for claim in claims if claim[1] in nodes.with_cpus]
    source, node = (best or claims or ((None, None),))[0]
    return Gpu(
        bdf=said.bdf,
        vendor=vendor.name,
        pci_class=pci.pci_class if pci else None,
        device=pci.device if pci else None,
        uuid=said.uuid,
        name=said.name,
        node=node,
        source=source,
        mig=said.mig,
        claims=claims,
    )


def node_claims(
    said: DriverGpu, pci: PciDevice | None, nodes: "NodeIndex", vendor: Vendor
) -> Iterator[tuple[str, int]]:
    """Yield what each source says, the most specific first; -1 and CPUs of several nodes say nothing."""
    library = vendor.library
    own = said.numa_node
    if library and library.node_may_be_its_own and own not in nodes.with_cpus:
        own = None
    for source, node in (
        ("pci-node", pci.numa_node if pci else None),
        ("pci-cpus", nodes.only_node_of(pci.local_cpus if pci else None)),
        (library.cpus_source if library else None, nodes.only_node_of(said.cpu_affinity)),
        (library.node_source if library else None, own),
    ):
        if source and node is not None:
            yield source, node


def disagreement_notes(gpus: Iterable[Gpu]) -> tuple[Note, ...]:
    """Return a warning for each way in which the sources name different nodes."""
    ways: dict[tuple[tuple[str, int], ...], list[Gpu]] = {}
    for gpu in gpus:
        if len({node for _, node in gpu.claims}) > 1:
            ways.setdefault(gpu.claims, []).append(gpu)
    return tuple(
        note(
            "gpu-node-disagreement",
            gpus=", ".join(gpu.bdf or "without address" for gpu in of_way),
            said=", ".join(f"{source} says node {node}" for source, node in claims),
            node=of_way[0].node,
            why=f"{of_way[0].source} is the more specific source"
            if of_way[0].source == claims[0][0]
            else f"node {claims[0][1]} has no CPUs",
        )
        for claims, of_way in ways.items()
    )


class NodeIndex:
    """The nodes, arranged to look up which of them a set of CPUs belongs to."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.ids: set[int] = set()
        self.with_cpus: set[int] = set()
        self._nodes_of_cpu: dict[int, set[int]] = {}
        for node in nodes:
            self.ids.add(node.id)
            if node.cpus:
                self.with_cpus.add(node.id)
            for cpu in node.cpus:
                self._nodes_of_cpu.setdefault(cpu, set()).add(node.id)

    def only_node_of(self, cpus: frozenset[int] | None) -> int | None:
        """Return the node these CPUs are of; None where they are of none, or of several as virtual machines say."""
        near = set[int]().union(*(self._nodes_of_cpu.get(cpu, ()) for cpu in cpus or ()))
        return near.pop() if len(near) == 1 else None
