"""Which devices are GPUs, in which order, and on which node each is, by which source."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numa_launch.errors import MachineError
from numa_launch.machine.model import Machine
from numa_launch.machine.pci import normal_bdf
from numa_launch.machine.read import read_machine
from tests.lay import TWO_NODES, lay, put

Read = Callable[..., Machine]


def found(machine: Machine) -> list[tuple[str | None, int | None, str | None]]:
    return [(gpu.bdf, gpu.node, gpu.source) for gpu in machine.gpus]


def with_gpus(*gpus: dict[str, Any]) -> dict[str, Any]:
    return {**TWO_NODES, "gpus": list(gpus)}


@pytest.mark.parametrize(
    ("gpu", "node", "source"),
    [
        ({"node": 1}, 1, "pci-node"),
        ({"node": 1, "local_cpus": "0-7"}, 1, "pci-node"),
        ({"node": -1, "local_cpus": "8-15"}, 1, "pci-cpus"),
        ({"node": -1, "local_cpus": "0-15"}, None, None),
        ({"node": -1, "local_cpus": "0-15", "nvml_cpus": "8-11"}, 1, "nvml-cpus"),
        ({"node": -1, "local_cpus": "", "nvml_cpus": "0-15", "nvml_node": 1}, 1, "nvml-node"),
        ({"node": -1, "local_cpus": "", "nvml_node": 2}, None, None),
        ({"node": -1, "local_cpus": "", "nvml_node": 9}, None, None),
        ({"node": 9, "local_cpus": "8"}, 1, "pci-cpus"),
        ({"node": 2, "local_cpus": ""}, 2, "pci-node"),
        ({"node": 2, "local_cpus": "8-9"}, 1, "pci-cpus"),
        ({"node": 2, "local_cpus": "", "nvml_cpus": "0"}, 0, "nvml-cpus"),
        ({"node": -1, "local_cpus": "99"}, None, None),
        ({"vendor": "amd", "node": -1, "local_cpus": "", "nvml_node": 1}, 1, "amd-node"),
    ],
)
def test_the_first_source_that_names_a_node_with_cpus(
    read: Read, gpu: dict[str, Any], node: int | None, source: str | None
) -> None:
    nodes = {**TWO_NODES["nodes"], "2": {"cpus": ""}}
    assert found(read({"nodes": nodes, "gpus": [gpu]})) == [("0000:10:00.0", node, source)]


@pytest.mark.parametrize(
    ("gpus", "kept"),
    [
        ([{"vendor": "0x1a03", "class": "0x030000"}, {"vendor": "0x102b", "class": "0x030000"}], []),
        ([{"class": "0x030000"}, {"class": "0x030200"}, {"class": "0x060400"}, {"class": "0x068000"}], [0, 1]),
        ([{"vendor": "amd", "class": c} for c in ("0x030000", "0x038000", "0x120000", "0x030200")], [1, 2, 3]),
        ([{"vendor": "amd", "class": "0x030000"}, {"vendor": "amd", "class": "0x040300"}], [0]),
        ([{"vendor": "intel", "class": "0x030000"}, {"vendor": "intel", "class": "0x038000"}], [1]),
        ([{"vendor": "intel"}, {"vendor": "amd"}, {"vendor": "nvidia"}], [2]),
        ([{"vendor": "intel"}, {"vendor": "amd"}], [1]),
        ([{"driver": "vfio-pci"}, {"driver": "nvidia"}, {"physfn": "0000:11:00.0"}], [1]),
        ([{"driver": "vfio-pci"}, {"vendor": "amd"}], [1]),
        ([{"class": "garbage"}, {"vendor": "amd"}], [1]),
    ],
)
def test_which_devices_are_gpus(read: Read, gpus: list[dict[str, Any]], kept: list[int]) -> None:
    assert [gpu.bdf for gpu in read(with_gpus(*gpus)).gpus] == [f"0000:{16 + 16 * i:02x}:00.0" for i in kept]


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel"])
def test_vendor_overrides(read: Read, vendor: str) -> None:
    machine = read(with_gpus({"vendor": "intel"}, {"vendor": "amd"}, {"vendor": "nvidia"}), vendor=vendor)
    assert [gpu.vendor for gpu in machine.gpus] == [vendor]


def test_the_order_is_by_number_not_by_text(read: Read) -> None:
    addresses = ["10000:01:00.0", "0002:01:00.1", "0002:01:00.0", "000a:01:00.0", "0001:ff:1f.0"]
    machine = read(with_gpus(*({"bdf": bdf} for bdf in addresses)))
    assert [gpu.bdf for gpu in machine.gpus] == [
        "0001:ff:1f.0",
        "0002:01:00.0",
        "0002:01:00.1",
        "000a:01:00.0",
        "10000:01:00.0",
    ]


@pytest.mark.parametrize(
    ("text", "bdf"),
    [("00000000:9F:00.0", "0000:9f:00.0"), ("10000:E1:00.0", "10000:e1:00.0"), ("0:7:0.0", "0000:07:00.0")],
)
def test_addresses_as_others_write_them(text: str, bdf: str) -> None:
    assert normal_bdf(text) == bdf


@pytest.mark.parametrize("text", ["", "0000:07:00", "0000:07:00.8", "xyz", "0000:107:00.0"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="PCI address"):
        normal_bdf(text)


def library(tmp_path: Path, *entries: dict[str, Any] | Any, gpus: list[dict[str, Any]] | None = None) -> Path:
    root = lay(tmp_path / "root", {**TWO_NODES, "gpus": gpus or []})
    put(root / "gpus.json", json.dumps(entries))
    return root


def test_the_librarys_list_counts_and_pci_adds_nodes(tmp_path: Path) -> None:
    entry = {"bdf": "00000000:20:00.0", "uuid": "GPU-b", "name": "H100"}
    root = library(tmp_path, entry, gpus=[{"node": 0}, {"node": 1}])
    assert found(read_machine(root, environ={})) == [("0000:20:00.0", 1, "pci-node")]


@pytest.mark.parametrize(
    "own", [{"physfn": "0000:20:00.0"}, {"driver": "vfio-pci"}, {"vendor": "amd", "class": "0x030000"}]
)
def test_pci_adds_the_node_of_a_gpu_that_it_would_not_list_itself(read: Read, own: dict[str, str]) -> None:
    others = {"vendor": own.get("vendor", "nvidia")}
    machine = read(with_gpus({"node": 1, "uuid": "GPU-a", **own}, {"node": 0, **others}))
    assert found(machine) == [("0000:10:00.0", 1, "pci-node")]


def test_what_the_library_did_not_say_the_driver_may(tmp_path: Path) -> None:
    root = library(tmp_path, {"bdf": "0000:10:00.0"}, gpus=[{"node": 0}])
    put(root / "proc/driver/nvidia/gpus/0000:10:00.0/information", "GPU UUID: GPU-a\nModel: H100")
    (gpu,) = read_machine(root, environ={}).gpus
    assert (gpu.uuid, gpu.name) == ("GPU-a", "H100")


def test_a_name_cannot_reach_the_terminal_raw(tmp_path: Path) -> None:
    root = library(tmp_path, {"name": "a\x1b[31m\ud800\n"})
    assert read_machine(root, environ={}).gpus[0].name == "a?[31m??"


def test_an_empty_answer_is_no_gpu(tmp_path: Path) -> None:
    assert read_machine(library(tmp_path, gpus=[{"node": 0}]), environ={}).gpus == ()


def test_everything_may_be_null(tmp_path: Path) -> None:
    keys = ("index", "bdf", "uuid", "name", "numa_node", "cpu_affinity", "mig")
    root = library(tmp_path, dict.fromkeys(keys), {})
    assert found(read_machine(root, environ={})) == [(None, None, None)] * 2


def test_without_addresses_the_index_orders(tmp_path: Path) -> None:
    root = library(tmp_path, {"index": 1, "uuid": "GPU-b"}, {"index": 0, "uuid": "GPU-a"})
    assert [gpu.uuid for gpu in read_machine(root, environ={}).gpus] == ["GPU-a", "GPU-b"]


def test_another_vendors_gpus_come_from_pci(tmp_path: Path) -> None:
    root = library(tmp_path, {"bdf": "0000:10:00.0"}, gpus=[{"node": 0}, {"node": 1, "vendor": "amd"}])
    assert found(read_machine(root, environ={}, vendor="amd")) == [("0000:20:00.0", 1, "pci-node")]
    assert found(read_machine(root, environ={})) == [("0000:10:00.0", 0, "pci-node")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "{}",
        "3",
        "[3]",
        "[null]",
        '[{"bdf": "x"}]',
        '[{"bdf": 3}]',
        '[{"index": "0"}]',
        '[{"index": true}]',
        '[{"cpu_affinity": "0-"}]',
        '[{"mig": "MIG-a"}]',
        '[{"mig": [3]}]',
        '[{"numa_node": 1.5}]',
        "[" * 100_000,
        json.dumps([{"cpu_affinity": "0-65535"}] * 2000),
        json.dumps([{"name": ["x"] * 100_000}]),
    ],
)
def test_a_broken_gpus_json_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    root = lay(tmp_path, TWO_NODES)
    (root / "gpus.json").write_text(text)
    with pytest.raises(MachineError, match=r"gpus\.json") as caught:
        read_machine(root)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_uuids_and_models_from_the_nvidia_driver(tmp_path: Path) -> None:
    root = lay(tmp_path, with_gpus({"node": 0}, {"node": 1}))
    proc = root / "proc/driver/nvidia/gpus"
    put(proc / "0000:10:00.0/information", "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-aa-bb\nBus Type: \t PCIe")
    put(proc / "0000:20:00.0/information", "GPU UUID: \t GPU-????????-????")
    put(proc / "nonsense/information", "GPU UUID: \t GPU-cc")
    machine = read_machine(root, environ={"CUDA_VISIBLE_DEVICES": "GPU-aa"})
    assert [(gpu.uuid, gpu.name) for gpu in machine.gpus] == [("GPU-aa-bb", "NVIDIA H100"), (None, None)]
    assert machine.visible == (0,)
