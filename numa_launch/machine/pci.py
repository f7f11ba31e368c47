"""GPUs as PCI sysfs shows them: which devices count, and what each says about its node.

Example: ``read_pci_gpus("")`` on a DGX H100 gives eight devices of vendor ``nvidia``, in PCI order.
Source: kernel Documentation/ABI/testing/sysfs-bus-pci; classes from the PCI Code and ID Assignment Specification.
"""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from numa_launch.idsets import parse_ids
from numa_launch.machine.files import list_names, read_value

DEVICES = "/sys/bus/pci/devices"

GPU_CLASSES: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "nvidia": ("0x10de", ((0x0300, 0x0302),)),
    "amd": ("0x1002", ((0x0380, 0x1200, 0x0302), (0x0300,))),
    "intel": ("0x8086", ((0x0380, 0x1200, 0x0302), (0x0300,))),
}
"""Vendor → (its PCI id, groups of classes: a later group counts only where no device is of an earlier one).

The first vendor that has any is the host's. An Instinct host's integrated graphics (0x0300) is not a worker's GPU.
"""

_BDF = re.compile(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])")


class PciGpu(NamedTuple):
    """A PCI device that is a GPU: `numa_node` and `local_cpus` as sysfs has them, None where it does not say."""

    bdf: str
    vendor: str
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


def read_pci_gpus(root: str, vendor: str | None = None) -> tuple[PciGpu, ...]:
    """Return the host's GPUs in PCI order, of `vendor` or else of the first vendor in GPU_CLASSES that has any."""
    ids = {pci_id: name for name, (pci_id, _) in GPU_CLASSES.items()}
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in GPU_CLASSES}
    for name in list_names(f"{root}{DEVICES}"):
        path = f"{root}{DEVICES}/{name}"
        of = ids.get((read_value(f"{path}/vendor", str) or "").lower())
        pci_class = read_value(f"{path}/class", str) if of and _BDF.fullmatch(name) else None
        if of and pci_class and not belongs_to_a_guest(path):
            found[of].append((name, pci_class))
    for name in [vendor] if vendor else list(GPU_CLASSES):
        gpus = of_first_group(found[name], GPU_CLASSES[name][1])
        if gpus:
            gpus.sort(key=lambda gpu: pci_order(gpu[0]))
            return tuple(read_pci_gpu(root, bdf, name, pci_class) for bdf, pci_class in gpus)
    return ()


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


def read_pci_device(root: str, bdf: str) -> PciGpu | None:
    """Return the device at this address, whatever its class, None where none of a known vendor is there."""
    path = f"{root}{DEVICES}/{bdf}"
    pci_id = (read_value(f"{path}/vendor", str) or "").lower()
    vendor = next((name for name, (own, _) in GPU_CLASSES.items() if own == pci_id), None)
    return read_pci_gpu(root, bdf, vendor, read_value(f"{path}/class", str)) if vendor else None


def read_pci_gpu(root: str, bdf: str, vendor: str, pci_class: str | None) -> PciGpu:
    path = f"{root}{DEVICES}/{bdf}"
    return PciGpu(
        bdf=normal_bdf(bdf),
        vendor=vendor,
        pci_class=pci_class,
        device=read_value(f"{path}/device", str),
        numa_node=read_value(f"{path}/numa_node", int),
        local_cpus=read_value(f"{path}/local_cpulist", parse_ids),
    )
