"""Intel: PCI classes and Level Zero's variables; what is known of its GPUs stands in sysfs.

Example: ``visible(gpus, {"ZE_AFFINITY_MASK": "0.1,2"})`` leaves devices 0 and 2.
Source: Level Zero specification (ZE_AFFINITY_MASK, ZE_FLAT_DEVICE_HIERARCHY).
"""

from collections.abc import Mapping, Sequence

from numa_launch.machine.gpu import Gpu
from numa_launch.machine.pci import render_node
from numa_launch.machine.vendors.vendor import FileFacts, Vendor
from numa_launch.machine.visible import Visible
from numa_launch.reasons import Note, note


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Visible:
    """Return what ZE_AFFINITY_MASK leaves, in the host's order; ``x.y`` is device x, an empty mask leaves all."""
    everything = tuple(range(len(gpus)))
    mask = environ.get("ZE_AFFINITY_MASK", "").strip()
    if not mask:
        return Visible(everything)
    devices = {entry.strip().partition(".")[0] for entry in mask.split(",")}
    notes: tuple[Note, ...] = ()
    if environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "FLAT":
        notes = (note("ze-flat-hierarchy"),)
    return Visible(tuple(i for i in everything if str(i) in devices), "ZE_AFFINITY_MASK", notes)


def read_facts(root: str, addresses: Sequence[str]) -> dict[str, FileFacts]:
    """Return each GPU's device node, by PCI address."""
    return {bdf: FileFacts(device_node=render_node(root, bdf)) for bdf in addresses}


VENDOR = Vendor(
    name="intel",
    pci_id="0x8086",
    classes=((0x0380, 0x1200, 0x0302), (0x0300,)),
    variables=("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"),
    visible=visible,
    read_facts=read_facts,
)
