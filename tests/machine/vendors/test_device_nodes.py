"""Containers whose library cannot be asked: the GPUs are those whose device nodes are there."""

from pathlib import Path
from typing import Any

import pytest

from numa_launch.machine.read import read_machine
from tests.lay import TWO_NODES, lay, put
from tests.machine.vendors.live import read_live


def lay_gpus(root: Path, vendor: str, nodes_given: list[int]) -> Path:
    """Lay four GPUs with their driver's files, and the device nodes of some."""
    gpus: list[dict[str, Any]] = [{"vendor": vendor, "node": i // 2} for i in range(4)]
    lay(root, {**TWO_NODES, "gpus": gpus})
    for i in range(4):
        bdf = f"0000:{i + 1}0:00.0"
        if vendor == "nvidia":
            put(root / f"proc/driver/nvidia/gpus/{bdf}/information", f"Device Minor: \t {i}\nGPU UUID: GPU-{i}")
        else:
            put(root / f"sys/bus/pci/devices/{bdf}/drm/renderD{128 + i}/dev", "226:128")
    for i in nodes_given:
        put(root / (f"dev/nvidia{i}" if vendor == "nvidia" else f"dev/dri/renderD{128 + i}"), "")
    return root


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel"])
@pytest.mark.parametrize(("given", "seen"), [([1, 2], [1, 2]), ([0, 1, 2, 3], [0, 1, 2, 3]), ([], [0, 1, 2, 3])])
def test_the_gpus_of_a_container(tmp_path: Path, vendor: str, given: list[int], seen: list[int]) -> None:
    live = read_live(lay_gpus(tmp_path, vendor, given))
    assert [gpu.bdf for gpu in live.gpus] == [f"0000:{i + 1}0:00.0" for i in seen]


def test_a_capture_has_no_device_nodes(tmp_path: Path) -> None:
    assert len(read_machine(lay_gpus(tmp_path, "nvidia", [1]), environ={}).gpus) == 4
