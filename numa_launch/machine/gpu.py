"""A GPU as data. It stands alone, as the process that asks a driver starts often and needs no more of the model.

Example: ``machine.visible_gpus[0].node`` is 3 on a DGX A100 in NPS4.
"""

from typing import NamedTuple


class Gpu(NamedTuple):
    """A GPU of the host; what is not known is None.

    `node` is what the source says, also a node without CPUs; `source` is ``pci-node``, ``pci-cpus``, ``nvml-cpus``,
    ``nvml-node`` or ``amd-node``. `mig` are the UUIDs of its MIG slices. `claims` are all (source, node) pairs, the
    most specific first.
    """

    bdf: str | None
    vendor: str | None = None
    pci_class: str | None = None
    device: str | None = None
    uuid: str | None = None
    name: str | None = None
    node: int | None = None
    source: str | None = None
    mig: tuple[str, ...] = ()
    claims: tuple[tuple[str, int], ...] = ()
