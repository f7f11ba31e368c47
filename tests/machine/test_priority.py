"""Priority cores: only what is known for certain."""

from collections.abc import Callable
from pathlib import Path

import pytest

from numa_launch.machine.model import Machine
from numa_launch.machine.priority import STRIDE_OF_SKU
from numa_launch.machine.read import read_machine
from tests.lay import TWO_NODES, lay, put

Read = Callable[..., Machine]


@pytest.mark.parametrize("sku", STRIDE_OF_SKU)
def test_a_known_model(read: Read, sku: str) -> None:
    perf, stride = STRIDE_OF_SKU[sku]
    nodes = {"0": {"cpus": "0-31"}, "1": {"cpus": "32-63"}}
    machine = read({"nodes": nodes, "cpu_model": f"Intel(R) Xeon(R) {sku}", "highest_perf": perf})
    assert machine.priority_cpus == {cpu for cpu in range(64) if cpu % stride < 2}


@pytest.mark.parametrize("perf", [42, 44, "46 46", "", "x"])
def test_any_other_value_is_none(read: Read, perf: object) -> None:
    assert not read({**TWO_NODES, "cpu_model": "Intel(R) Xeon(R) 6776P", "highest_perf": perf}).priority_cpus


def test_unreadable_is_none(tmp_path: Path) -> None:
    root = lay(tmp_path, {**TWO_NODES, "cpu_model": "Xeon 6776P"})
    assert not read_machine(root, environ={}).priority_cpus
    put(root / "sys/devices/system/cpu/cpu0/acpi_cppc/highest_perf", "46")
    assert read_machine(root, environ={}).priority_cpus
    (root / "proc/cpuinfo").unlink()
    assert not read_machine(root, environ={}).priority_cpus
