"""NVML through the real nvidia-ml-py on a stub library: what it says of each kind of host, and what it fails with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numa_launch.idsets import format_ids
from numa_launch.machine.model import Machine
from tests.lay import TWO_NODES, Description, lay, put
from tests.live import stub_of
from tests.machine.vendors.live import read_live, use_stub
from tests.stubs.build import describe, needs_compiler

pytestmark = needs_compiler

Ask = Callable[..., Machine]

NPS4 = {str(i): {"cpus": f"{16 * i}-{16 * i + 15},{128 + 16 * i}-{143 + 16 * i}"} for i in range(8)}
GRACE = {"0": {"cpus": "0-71"}, "1": {"cpus": "72-143"}, **{str(i): {"cpus": ""} for i in range(2, 34)}}


@pytest.fixture
def ask(nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return a function that lays a machine, lets NVML describe its GPUs, and reads it as a live host."""

    def lay_and_read(
        machine: Description, environ: dict[str, str] | None = None, library: Path = nvml, **settings: Any
    ) -> Machine:
        use_stub(monkeypatch, library, tmp_path / "description", stub_of(machine, **settings))
        return read_live(lay(tmp_path / "root", machine), environ)

    return lay_and_read


def codes(machine: Machine) -> list[str]:
    return [note.code for note in machine.notes]


def gpus(node_of: list[int], **more: Any) -> list[dict[str, Any]]:
    return [{"node": node, "uuid": f"GPU-{i}", "name": "H100", **more} for i, node in enumerate(node_of)]


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        pytest.param(
            {"nodes": {"0": {"cpus": "0-55"}, "1": {"cpus": "56-111"}}, "gpus": gpus([0] * 4 + [1] * 4)},
            [(0, "pci-node")] * 4 + [(1, "pci-node")] * 4,
            id="DGX H100",
        ),
        pytest.param(
            {"nodes": NPS4, "gpus": [{"nvml_cpus": NPS4[str(n)]["cpus"]} for n in (3, 3, 1, 1, 7, 7, 5, 5)]},
            [(n, "nvml-cpus") for n in (3, 3, 1, 1, 7, 7, 5, 5)],
            id="DGX A100 in NPS4 whose firmware says nothing",
        ),
        pytest.param(
            {
                "nodes": GRACE,
                "gpus": [
                    {"bdf": "0008:01:00.0", "node": 0, "nvml_node": 2, "nvml_cpus": "0-71"},
                    {"bdf": "0018:01:00.0", "node": 1, "nvml_node": 18, "nvml_cpus": "72-143"},
                ],
            },
            [(0, "pci-node"), (1, "pci-node")],
            id="GB200",
        ),
        pytest.param(
            {"nodes": GRACE, "gpus": [{"node": 2, "local_cpus": "", "nvml_node": 2, "nvml_cpus": "0-71"}]},
            [(0, "nvml-cpus")],
            id="Grace whose sysfs names the GPU's own memory",
        ),
        pytest.param(
            {**TWO_NODES, "gpus": [{"bdf": "0000:9f:00.0", "node": 1, "name": "L4"}]},
            [(1, "pci-node")],
            id="AWS L4: affinity and node Not Supported",
        ),
        pytest.param(
            {**TWO_NODES, "gpus": [{"nvml_cpus": "8-15"}, {"nvml_node": 1}, {"nvml_cpus": "0-15"}, {"nvml_node": -1}]},
            [(1, "nvml-cpus"), (1, "nvml-node"), (None, None), (None, None)],
            id="firmware without proximity",
        ),
        pytest.param(
            {"nodes": {"0": {"cpus": "0-63"}, "1": {"cpus": "64-127"}}, "gpus": [{"nvml_cpus": "64-127"}]},
            [(1, "nvml-cpus")],
            id="more than 64 CPUs",
        ),
        pytest.param(
            {"nodes": {"0": {"cpus": "0-1023"}, "1": {"cpus": "1024-1791"}}, "gpus": [{"nvml_cpus": "1030-1791"}]},
            [(1, "nvml-cpus")],
            id="more than 1,024 CPUs",
        ),
        pytest.param(
            {"nodes": {"0": {"cpus": "0"}, "1": {"cpus": "1500"}}, "gpus": [{"nvml_cpus": "1500"}]},
            [(1, "nvml-cpus")],
            id="two CPUs, the higher with a high id",
        ),
    ],
)
def test_hosts(ask: Ask, machine: Description, found: list[tuple[int | None, str | None]]) -> None:
    live = ask(machine)
    assert [(gpu.node, gpu.source) for gpu in live.gpus] == found
    assert "driver-silent" not in codes(live)
    assert live.gap is None


def test_every_fact(ask: Ask) -> None:
    machine = {**TWO_NODES, "gpus": gpus([0, 0, 1], nvml_cpus="0-7")}
    machine["gpus"][2] |= {"name": "NVIDIA A100-SXM4-80GB", "mig": ["MIG-cc0", "MIG-cc1"], "nvml_cpus": "8-15"}
    found = ask(machine).gpus
    assert [(gpu.bdf, gpu.uuid, gpu.name) for gpu in found] == [
        ("0000:10:00.0", "GPU-0", "H100"),
        ("0000:20:00.0", "GPU-1", "H100"),
        ("0000:30:00.0", "GPU-2", "NVIDIA A100-SXM4-80GB"),
    ]
    assert found[2].mig == ("MIG-cc0", "MIG-cc1")
    assert found[2].claims == (("pci-node", 1), ("pci-cpus", 1), ("nvml-cpus", 1))


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("MIG-cc1", (3,)),
        ("MIG-cc0,MIG-cc1", (3,)),
        ("MIG-GPU-3/1/0", (3,)),
        ("GPU-2,3", (2, 3)),
        ("1,MIG-cc0", (1, 3)),
        ("MIG-none", ()),
    ],
)
def test_mig_slices_of_gpu_3_lead_to_it(ask: Ask, text: str, seen: tuple[int, ...]) -> None:
    machine = {**TWO_NODES, "gpus": gpus([0, 0, 1, 1])}
    machine["gpus"][3]["mig"] = ["MIG-cc0", "MIG-cc1"]
    assert ask(machine, {"CUDA_VISIBLE_DEVICES": text}).visible == seen


def test_a_container_has_the_gpus_that_the_driver_shows(ask: Ask) -> None:
    machine = {
        **TWO_NODES,
        "gpus": [{"node": 0}, {"node": 0}, {"node": 1, "uuid": "GPU-a"}, {"node": 1, "uuid": "GPU-b"}],
    }
    live = ask(machine)
    assert [(gpu.bdf, gpu.uuid, gpu.node) for gpu in live.gpus] == [
        ("0000:30:00.0", "GPU-a", 1),
        ("0000:40:00.0", "GPU-b", 1),
    ]
    assert live.visible == (0, 1)


def test_gpus_that_this_process_may_not_open_are_none_of_its(ask: Ask) -> None:
    """NVML counts them all the same (NVML API reference, nvmlDeviceGetCount_v2); Slurm's device cgroup makes such."""
    machine = {**TWO_NODES, "gpus": gpus([0, 0, 1, 1])}
    for gpu in machine["gpus"][:2]:
        gpu["fail"] = "nvmlDeviceGetHandleByIndex_v2 4"
    live = ask(machine, {"CUDA_VISIBLE_DEVICES": "0"})
    assert [(gpu.bdf, gpu.node) for gpu in live.gpus] == [("0000:30:00.0", 1), ("0000:40:00.0", 1)]
    assert [gpu.node for gpu in live.visible_gpus] == [1]


def test_a_container_without_gpus_has_none_and_knows_why(ask: Ask) -> None:
    live = ask({**TWO_NODES, "gpus": gpus([0, 1])}, count=0)
    assert live.gpus == ()
    assert live.gap == "NVML shows none of the 2 GPUs that PCI has"


def test_an_old_driver_lacks_scope_node_and_mig(ask: Ask, old_nvml: Path) -> None:
    machine = {**TWO_NODES, "gpus": [{"nvml_cpus": "8-15", "mig": ["MIG-a"], "nvml_node": 0}, {"nvml_node": 1}]}
    live = ask(machine, library=old_nvml)
    assert [(gpu.node, gpu.source, gpu.mig) for gpu in live.gpus] == [(1, "nvml-cpus", ()), (None, None, ())]
    assert codes(live) == []


def test_a_lost_gpu_keeps_its_place_and_its_node_of_pci(ask: Ask) -> None:
    machine = {**TWO_NODES, "gpus": gpus([0, 0, 1, 1])}
    machine["gpus"][2]["fail"] = "nvmlDeviceGetHandleByIndex_v2 15"
    live = ask(machine)
    assert [(gpu.bdf, gpu.uuid, gpu.node) for gpu in live.gpus][2] == ("0000:30:00.0", None, 1)
    assert [gpu.uuid for gpu in live.gpus] == ["GPU-0", "GPU-1", None, "GPU-3"]
    assert [note.message for note in live.notes] == [
        "what NVML knows of GPU 0000:30:00.0 is unknown, because GPU is lost: reset that GPU, or reboot"
    ]


def test_a_lost_gpu_whose_address_nobody_can_tell_is_unknown(ask: Ask) -> None:
    given = [{"node": 1, "uuid": "GPU-a"}, {"node": 1, "uuid": "GPU-b", "fail": "nvmlDeviceGetHandleByIndex_v2 15"}]
    live = ask({**TWO_NODES, "gpus": [{"node": 0}, {"node": 0}, *given]})
    assert [(gpu.bdf, gpu.node) for gpu in live.gpus] == [("0000:30:00.0", 1), (None, None)]


@pytest.mark.parametrize(
    ("function", "lost"),
    [
        ("PciInfo_v3", set()),  # the only device left tells its address
        ("UUID", {"uuid", "mig"}),
        ("Name", {"name"}),
        ("CpuAffinityWithinScope", set()),  # the call without a scope answers as well
        ("NumaNodeId", set()),
        ("MigMode", {"mig"}),
    ],
)
@pytest.mark.parametrize("status", [3, 4, 15, 999])
def test_a_question_that_fails_leaves_the_others(ask: Ask, function: str, lost: set[str], status: int) -> None:
    facts = {"nvml_cpus": "8-15", "nvml_node": 1, "mig": ["MIG-a"]}
    live = ask({**TWO_NODES, "gpus": gpus([1], **facts, fail=f"nvmlDeviceGet{function} {status}")})
    (gpu,) = live.gpus
    assert (gpu.bdf, gpu.node) == ("0000:10:00.0", 1)
    assert {name for name in ("uuid", "name", "mig") if not getattr(gpu, name)} == lost
    assert codes(live) == (["driver-silent"] if status in (15, 999) else [])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"fail": "nvmlInitWithFlags 18"},
            "RM has detected an NVML/RM version mismatch: reload the kernel module nvidia, or reboot, so that it and "
            "the library are of one version",
        ),
        ({"fail": "nvmlInitWithFlags 9"}, "Driver Not Loaded: load the kernel module nvidia"),
        ({"fail": "nvmlInitWithFlags 999"}, "Unknown Error: run nvidia-smi to see more"),
        ({"fail": "nvmlDeviceGetCount_v2 4"}, "Insufficient Permissions: run nvidia-smi to see more"),
        ({"crash": "nvmlInitWithFlags"}, "it crashed (signal 6): look for GPU errors in dmesg"),
    ],
)
def test_a_library_that_fails_leaves_pci(ask: Ask, settings: dict[str, str], problem: str) -> None:
    live = ask({**TWO_NODES, "gpus": gpus([0, 1])}, **settings)
    assert [(gpu.node, gpu.source) for gpu in live.gpus] == [(0, "pci-node"), (1, "pci-node")]
    assert [note.message for note in live.notes] == [f"what NVML knows of the GPUs is unknown, because {problem}"]
    assert live.gap == f"NVML: {problem}"


@pytest.mark.parametrize(
    ("nonsense", "said"),
    [
        ({"bdf": "nonsense"}, "'nonsense' is not a PCI address such as 0000:07:00.0: update the driver"),
        ({"uuid": "\udcff\udcfe"}, "nvmlDeviceGetUUID gives no text"),
        ({"name": "\udcff"}, "nvmlDeviceGetName gives no text"),
    ],
)
def test_nonsense_about_one_gpu_leaves_the_rest(
    nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nonsense: dict[str, str], said: str
) -> None:
    root = lay(tmp_path / "root", {**TWO_NODES, "gpus": [{}, {}]})
    use_stub(monkeypatch, nvml, tmp_path / "description", "")
    gpus = [{"bdf": f"0000:{i + 1}0:00.0", "cpus": "8-15", "name": "H100"} for i in range(2)]
    text = describe([{**gpus[0], **nonsense}, gpus[1]])
    (tmp_path / "description").write_bytes(text.encode(errors="surrogateescape"))
    live = read_live(root)
    assert [(gpu.bdf, gpu.node) for gpu in live.gpus] == [("0000:10:00.0", 1), ("0000:20:00.0", 1)]
    (note,) = live.notes
    assert "GPU 0000:10:00.0" in note.message and said in note.message and "0000:20" not in note.message


def test_a_missing_library_is_said(tmp_path: Path) -> None:
    live = read_live(lay(tmp_path / "root", {**TWO_NODES, "gpus": gpus([0, 1])}))
    assert codes(live) == ["driver-silent"]
    assert str(live.gap).startswith("NVML: NVML Shared Library Not Found: install the driver's libnvidia-ml.so.1")


def test_sources_that_disagree_are_shown_with_the_one_taken(ask: Ask) -> None:
    machine = {**TWO_NODES, "gpus": gpus([0, 0], local_cpus="8-15", nvml_cpus="8-15") + gpus([1], nvml_cpus="8-15")}
    live = ask(machine)
    assert [(gpu.node, gpu.source) for gpu in live.gpus] == [(0, "pci-node"), (0, "pci-node"), (1, "pci-node")]
    assert [note.message for note in live.notes] == [
        "of GPU 0000:10:00.0, 0000:20:00.0, pci-node says node 0, pci-cpus says node 1, nvml-cpus says node 1: node 0 "
        "is taken, as pci-node is the more specific source; if that is wrong, pass --numa-nodes (numa_bind_nodes)"
    ]


def test_a_node_without_cpus_gives_way_and_that_is_shown(ask: Ask) -> None:
    nodes = {**TWO_NODES["nodes"], "2": {"cpus": ""}}
    live = ask({"nodes": nodes, "gpus": [{"node": 2, "local_cpus": "", "nvml_cpus": "8-15"}]})
    (note,) = live.notes
    assert note.code == "gpu-node-disagreement"
    assert "node 1 is taken, as node 2 has no CPUs" in note.message


@pytest.mark.parametrize(
    "gpu",
    [{"node": 0}, {"node": 0, "nvml_cpus": "0-15"}, {"node": -1, "nvml_cpus": "8-15"}, {"node": 0, "nvml_node": 2}],
)
def test_who_does_not_know_does_not_disagree(ask: Ask, gpu: dict[str, Any]) -> None:
    nodes = {**TWO_NODES["nodes"], "2": {"cpus": ""}}
    assert codes(ask({"nodes": nodes, "gpus": [{"local_cpus": "", **gpu}]})) == []


def test_masks_are_as_wide_as_the_highest_possible_cpu(ask: Ask, tmp_path: Path) -> None:
    machine = {"nodes": {"0": {"cpus": "0-7"}, "1": {"cpus": "8-15"}}, "gpus": [{"nvml_cpus": "8-15,900-910"}]}
    (tmp_path / "root/sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "root/sys/devices/system/cpu/possible").write_text("0-1023\n")
    assert [gpu.node for gpu in ask(machine).gpus] == [1]
    assert format_ids(ask(machine).online) == "0-15"


def test_a_driver_that_fails_is_said_also_where_another_vendor_has_gpus(ask: Ask, tmp_path: Path) -> None:
    put(tmp_path / "root/dev/nvidiactl", "")
    live = ask({**TWO_NODES, "gpus": [{"vendor": "intel", "node": 1}]}, fail="nvmlInitWithFlags 9")
    assert [gpu.vendor for gpu in live.gpus] == ["intel"]
    assert codes(live) == ["driver-silent"]


def test_different_models_are_warned_about(ask: Ask) -> None:
    machine = {**TWO_NODES, "gpus": [{"node": 0, "name": "H100"}, {"node": 1, "name": "A100"}]}
    assert codes(ask(machine)) == ["cuda-device-order"]
    assert codes(ask(machine, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})) == []
