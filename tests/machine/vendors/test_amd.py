"""AMD SMI through the real amdsmi on a stub library."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numa_launch.machine.capture import capture_below
from numa_launch.machine.model import Machine
from numa_launch.machine.read import driver_of, read_machine
from tests.lay import TWO_NODES, Description, lay, put
from tests.live import stub_of
from tests.machine.vendors.live import read_live, use_stub
from tests.stubs.build import AMDSMI, needs_amdsmi

Ask = Callable[..., Machine]


@pytest.fixture
def ask(amd_smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.syspath_prepend(str(AMDSMI))

    def lay_and_read(machine: Description, environ: dict[str, str] | None = None, **settings: Any) -> Machine:
        use_stub(monkeypatch, amd_smi, tmp_path / "description", stub_of(machine, "amd", **settings))
        return read_live(lay(tmp_path / "root", machine), environ)

    return lay_and_read


def with_gpus(*gpus: dict[str, Any]) -> Description:
    return {**TWO_NODES, "gpus": [{"vendor": "amd", "class": "0x120000", **gpu} for gpu in gpus]}


@needs_amdsmi
def test_every_fact(ask: Ask) -> None:
    live = ask(with_gpus({"nvml_node": 1, "uuid": "GPU-1a2b3c4d5e6f7081", "name": "AMD Instinct MI300X"}, {"node": 0}))
    assert live.gpus[0][:8] == (
        "0000:10:00.0",
        "amd",
        "0x120000",
        "0x2330",
        "GPU-1a2b3c4d5e6f7081",
        "AMD Instinct MI300X",
        1,
        "amd-node",
    )
    assert len(live.gpus) == 1
    assert live.notes == ()


@needs_amdsmi
def test_pci_comes_first_and_a_node_that_is_minus_1_is_unknown(ask: Ask) -> None:
    live = ask(with_gpus({"node": 0, "nvml_node": 1}, {"nvml_node": -1}, {"uuid": "GPU-1"}))
    assert [(gpu.node, gpu.source) for gpu in live.gpus] == [(0, "pci-node"), (None, None), (None, None)]
    assert [note.code for note in live.notes] == ["gpu-node-disagreement"]


@needs_amdsmi
def test_without_a_uuid_of_hip_the_chips_number_is_it(ask: Ask) -> None:
    (gpu,) = ask(with_gpus({"node": 0, "name": "MI250"})).gpus
    assert gpu.uuid == "GPU-0000165312200000"


@needs_amdsmi
def test_rocr_filters_by_uuid_and_hip_indexes_the_rest(ask: Ask) -> None:
    machine = with_gpus(*({"node": i // 2, "uuid": f"GPU-{i:016x}"} for i in range(4)))
    environ = {"ROCR_VISIBLE_DEVICES": f"GPU-{3:016x},0", "HIP_VISIBLE_DEVICES": "1,0"}
    assert ask(machine, environ).visible == (0, 3)


@needs_amdsmi
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"fail": "amdsmi_init 34"},
            "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded: run amd-smi list to see more",
        ),
        ({"fail": "amdsmi_init 8"}, "AMDSMI_STATUS_TIMEOUT - Timeout in API call: run amd-smi list to see more"),
        ({"crash": "amdsmi_get_socket_handles"}, "it crashed (signal 6): look for GPU errors in dmesg"),
    ],
)
def test_a_library_that_fails_leaves_pci(ask: Ask, settings: dict[str, str], problem: str) -> None:
    live = ask(with_gpus({"node": 0}, {"node": 1}), **settings)
    assert [gpu.node for gpu in live.gpus] == [0, 1]
    assert [note.message for note in live.notes] == [f"what AMD SMI knows of the GPUs is unknown, because {problem}"]


@needs_amdsmi
@pytest.mark.parametrize("function", ["gpu_device_bdf", "gpu_asic_info", "gpu_enumeration_info"])
@pytest.mark.parametrize("status", [2, 7])
def test_a_question_that_fails_leaves_the_others(ask: Ask, function: str, status: int) -> None:
    live = ask(with_gpus({"nvml_node": 1, "fail": f"amdsmi_get_{function} {status}"}))
    assert [(gpu.bdf, gpu.node) for gpu in live.gpus] == [("0000:10:00.0", 1)]
    assert [note.code for note in live.notes] == (["driver-silent"] if status == 7 else [])


@needs_amdsmi
def test_a_capture_without_addresses_still_knows_the_vendor(ask: Ask, tmp_path: Path) -> None:
    facts = {"vendor": "amd", "class": "0x120000", "uuid": "GPU-1", "fail": "amdsmi_get_gpu_device_bdf 2"}
    live = ask({**TWO_NODES, "gpus": [{**facts, "node": 0}, {**facts, "node": 1}]})
    assert [(gpu.bdf, gpu.node, gpu.vendor) for gpu in live.gpus] == [
        ("0000:10:00.0", 0, "amd"),
        ("0000:20:00.0", 1, "amd"),
    ]
    root = str(tmp_path / "root")
    for path, text in capture_below(root, None, {}, driver_of(root)).items():
        put(tmp_path / "copy" / path, text.rstrip("\n"))
    assert read_machine(tmp_path / "copy", environ={}) == live


@needs_amdsmi
@pytest.mark.parametrize("function", ["topo_get_numa_node_number", "get_gpu_topo_numa_affinity"])
def test_either_function_may_know_the_node(ask: Ask, function: str) -> None:
    assert [gpu.node for gpu in ask(with_gpus({"nvml_node": 1, "fail": f"amdsmi_{function} 2"})).gpus] == [1]


@needs_amdsmi
def test_the_binding_without_its_library_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(AMDSMI))
    live = read_live(lay(tmp_path, with_gpus({"node": 0})))
    assert live.gap == "AMD SMI: the system library libamd_smi.so is missing: install ROCm's amd-smi-lib"
    assert capfd.readouterr() == ("", "")


def test_without_the_binding_pci_says_it_and_nobody_is_warned(tmp_path: Path) -> None:
    live = read_live(lay(tmp_path, with_gpus({"node": 0}, {"node": -1})))
    assert [gpu.node for gpu in live.gpus] == [0, None]
    assert live.notes == ()
    assert live.gap == "AMD SMI: the Python package amdsmi is missing: pip install amdsmi"


def test_without_the_library_sysfs_has_the_uuid(tmp_path: Path) -> None:
    root = lay(tmp_path, with_gpus({"node": 0}, {"node": 1}))
    put(root / "sys/bus/pci/devices/0000:20:00.0/unique_id", "1a2b3c4d5e6f7081")
    put(root / "sys/bus/pci/devices/0000:10:00.0/unique_id", "nonsense")
    live = read_live(root, {"ROCR_VISIBLE_DEVICES": "GPU-1a2b"})
    assert [gpu.uuid for gpu in live.gpus] == [None, "GPU-1a2b3c4d5e6f7081"]
    assert live.visible == (1,)
