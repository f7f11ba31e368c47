"""PCI devices as sysfs shows them: which may be GPUs, and what each says about its node.

Example: ``read_pci_gpus("", "0x10de", ((0x0300, 0x0302),))`` on a DGX H100 gives eight devices, in PCI order.
Source: kernel Documentation/ABI/testing/sysfs-bus-pci; classes from the PCI Code and ID Assignment Specification.
"""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from numa_launch.idsets import parse_ids
from numa_launch.machine.files import list_names, read_value

DEVICES = "/sys/bus/pci/devices"

_BDF = re.compile(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])")


class PciDevice(NamedTuple):
    """A PCI device: `vendor_id`, `pci_class`, `numa_node` and the rest as sysfs has them, None: it does not say."""

    bdf: str
    vendor_id: str
    pci_class: str | None
    device: str | None
    numa_node: int | None
    local_cpus: frozenset[int] | None


def normal_bdf(text: str) -> str:
    """Return a PCI address as sysfs writes it: nvidia-smi's ``00000000:9F:00.0`` is ``0000:9f:00.0``.

    Raises ValueError for anything else.
    """
    found = _BDF.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a PCI address such as 0000:07:00.0")
    domain, bus, device = (int(part, 16) for part in found.groups()[:3])
    return f"{domain:04x}:{bus:02x}:{device:02x}.{found[4]}"


def pci_order(bdf: str) -> tuple[int, ...]:
    """Return domain, bus, device and function as numbers, the order in which drivers count GPUs."""
    return tuple(int(part, 16) for part in bdf.replace(".", ":").split(":"))


def read_pci_gpus(root: str, vendor_id: str, classes: Sequence[tuple[int, ...]]) -> tuple[PciDevice, ...]:
    """Return the host's devices of this vendor in PCI order, of the first group of classes that has any."""
    found = []
    for name in list_names(f"{root}{DEVICES}"):
        path = f"{root}{DEVICES}/{name}"
        if _BDF.fullmatch(name) and vendor_of(path) == vendor_id and not belongs_to_a_guest(path):
            found.append((name, read_value(f"{path}/class", str) or ""))
    found.sort(key=lambda device: pci_order(device[0]))
    return tuple(read_device(root, bdf) for bdf, _ in of_first_group(found, classes))


def vendor_of(path: str) -> str:
    return (read_value(f"{path}/vendor", str) or "").lower()


def of_first_group(devices: list[tuple[str, str]], groups: Sequence[tuple[int, ...]]) -> list[tuple[str, str]]:
    """Return the (address, class) pairs of the first group of classes that has any."""
    for group in groups:
        if chosen := [device for device in devices if class_code(device[1]) in group]:
            return chosen
    return []


def class_code(text: str) -> int:
    """Return class and subclass of sysfs's ``0x030200``: 0x0302; -1 where it is no number."""
    try:
        return int(text, 16) >> 8
    except ValueError:
        return -1


def belongs_to_a_guest(path: str) -> bool:
    """Return whether the device is an SR-IOV function, or bound to vfio-pci: a virtual machine's, not ours."""
    if os.path.lexists(f"{path}/physfn"):
        return True
    try:
        return os.path.basename(os.readlink(f"{path}/driver")) == "vfio-pci"
    except OSError:
        return False


def read_pci_device(root: str, bdf: str) -> PciDevice | None:
    """Return the device at this address, whatever its class; None where there is none."""
    return read_device(root, bdf) if vendor_of(f"{root}{DEVICES}/{bdf}") else None


def read_device(root: str, bdf: str) -> PciDevice:
    path = f"{root}{DEVICES}/{bdf}"
    return PciDevice(
        bdf=normal_bdf(bdf),
        vendor_id=vendor_of(path),
        pci_class=read_value(f"{path}/class", str),
        device=read_value(f"{path}/device", str),
        numa_node=read_value(f"{path}/numa_node", int),
        local_cpus=read_value(f"{path}/local_cpulist", parse_ids),
    )


def render_node(root: str, bdf: str) -> str | None:
    """Return the device node through which a GPU of the kernel's DRM is used: ``/dev/dri/renderD128``."""
    names = [name for name in list_names(f"{root}{DEVICES}/{bdf}/drm") if name.startswith("renderD")]
    return f"/dev/dri/{names[0]}" if names else None
