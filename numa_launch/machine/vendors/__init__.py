"""The vendors whose GPUs count, in the order in which a host's are looked for.

Example: ``VENDORS["nvidia"].pci_id`` is ``0x10de``. A new vendor is a file beside these and an entry here.
"""

from collections.abc import Mapping, Sequence

from numa_launch.machine.gpu import Gpu
from numa_launch.machine.vendors import amd, intel, nvidia
from numa_launch.machine.visible import Visible

VENDORS = {vendor.name: vendor for vendor in (nvidia.VENDOR, amd.VENDOR, intel.VENDOR)}

VARIABLES = tuple(dict.fromkeys(name for vendor in VENDORS.values() for name in vendor.variables))
"""Every variable on which the visible GPUs depend."""


def visible_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Visible:
    """Return which of the host's GPUs, all of one vendor, are visible under these variables."""
    if not gpus:
        return Visible(())
    return VENDORS[gpus[0].vendor or "nvidia"].visible(gpus, environ)
