"""The host's GPUs, each with its node: what PCI sysfs and the vendor's library say, reconciled.

Example: ``read_gpus("", nodes, vendor=None)[0].node`` is 3 on a DGX A100 in NPS4, with source ``pci-node``.
A new source is one more (source, node) pair in ``node_claims``.
"""

from collections.abc import Iterable, Iterator

from numa_launch.machine.gpufiles import DriverGpu, read_gpus_json, read_nvidia_proc
from numa_launch.machine.model import Gpu, Node
from numa_launch.machine.pci import GPU_CLASSES, PciGpu, read_pci_device, read_pci_gpus


def read_gpus(root: str, nodes: tuple[Node, ...], vendor: str | None = None) -> tuple[Gpu, ...]:
    """Return the host's GPUs in PCI order.

    Where the vendor's library answered its GPUs are the list (a container sees only those given to it) and PCI only
    adds nodes; otherwise PCI is the list. `vendor` overrides which vendor's GPUs count; where the library that
    answered is another vendor's, PCI is the list of those too.
    """
    index = NodeIndex(nodes)
    said = read_gpus_json(root)
    if said:
        devices = ((gpu.bdf, read_pci_device(root, gpu.bdf)) for gpu in said if gpu.bdf)
        pci = {bdf: device for bdf, device in devices if device}
        of_vendor = vendor or first_vendor(said, pci)
        said = tuple(gpu for gpu in said if vendor_of(gpu, pci, of_vendor) == of_vendor)
        if said:
            proc = read_nvidia_proc(root) if of_vendor == "nvidia" else {}
            return tuple(reconcile(completed(gpu, proc), pci.get(gpu.bdf or ""), index, of_vendor) for gpu in said)
    elif said is not None:
        return ()
    gpus = read_pci_gpus(root, vendor)
    proc = read_nvidia_proc(root) if gpus and gpus[0].vendor == "nvidia" else {}
    return tuple(reconcile(completed(DriverGpu(gpu.bdf), proc), gpu, index, gpu.vendor) for gpu in gpus)


def completed(gpu: DriverGpu, proc: dict[str, tuple[str | None, str | None]]) -> DriverGpu:
    """Return the GPU with UUID and name from /proc/driver/nvidia where the library did not say."""
    uuid, name = proc.get(gpu.bdf or "", (None, None))
    return gpu._replace(uuid=gpu.uuid or uuid, name=gpu.name or name)


def first_vendor(said: tuple[DriverGpu, ...], pci: dict[str, PciGpu]) -> str:
    """Return the vendor of the library's GPUs, the first in GPU_CLASSES where they are of several."""
    vendors = {vendor_of(gpu, pci, "nvidia") for gpu in said}
    return next(name for name in GPU_CLASSES if name in vendors)


def vendor_of(gpu: DriverGpu, pci: dict[str, PciGpu], otherwise: str) -> str:
    return pci[gpu.bdf].vendor if gpu.bdf in pci else otherwise


def reconcile(said: DriverGpu, pci: PciGpu | None, nodes: "NodeIndex", vendor: str) -> Gpu:
    """Return the GPU with the node of the first source that names one with CPUs, else one without, else unknown."""
    claims = [(source, node) for source, node in node_claims(said, pci, nodes, vendor) if node in nodes.ids]
    best = [claim for claim in claims if claim[1] in nodes.with_cpus]
    # NVML's node without CPUs is the GPU's own memory on Grace: it says nothing of where the CPUs are.
    rest = [claim for claim in claims if claim[0] != "nvml-node"]
    source, node = (best + rest + [(None, None)])[0]
    return Gpu(
        bdf=said.bdf,
        vendor=vendor,
        pci_class=pci.pci_class if pci else None,
        device=pci.device if pci else None,
        uuid=said.uuid,
        name=said.name,
        node=node,
        source=source,
        mig=said.mig,
    )


def node_claims(
    said: DriverGpu, pci: PciGpu | None, nodes: "NodeIndex", vendor: str
) -> Iterator[tuple[str | None, int | None]]:
    """Yield what each source says, the most specific first; -1 and CPUs of several nodes say nothing."""
    yield "pci-node", pci.numa_node if pci else None
    yield "pci-cpus", nodes.only_node_of(pci.local_cpus if pci else None)
    yield "nvml-cpus", nodes.only_node_of(said.cpu_affinity)
    yield "amd-node" if vendor == "amd" else "nvml-node", said.numa_node


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
