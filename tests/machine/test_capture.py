"""Which files a capture has, from laid machines with any driver; that what is read back is what was read."""

from pathlib import Path
from typing import Any

import pytest

from numa_launch.errors import MachineError
from numa_launch.machine.answers import Answer
from numa_launch.machine.capture import capture_below, capture_host
from numa_launch.machine.gpus import Ask
from numa_launch.machine.read import read_below, read_machine
from numa_launch.machine.topology import read_topology
from numa_launch.machine.vendors.vendor import DriverGpu
from tests.lay import FOUR_GPUS, TWO_NODES, Description, lay, put
from tests.machine.test_hostile import RICH
from tests.machine.vendors.test_device_nodes import lay_gpus


def answers(**by_vendor: Answer) -> Ask:
    return lambda vendor: by_vendor.get(vendor.name, Answer())


SILENT = answers()


def captured(root: Path, to: Path, ask: Ask = SILENT, vendor: str | None = None) -> Path:
    for path, text in capture_below(str(root), vendor, {}, ask).items():
        put(to / path, text.rstrip("\n"))
    return to


MACHINES: dict[str, Description] = {
    "rich": RICH,
    "four GPUs": FOUR_GPUS,
    "old kernel": {**FOUR_GPUS, "no_cpulist": True, "no_online": True},
    "no node directory": {**FOUR_GPUS, "no_node_dir": True},
    "cgroup v1": {**FOUR_GPUS, "cpuset": "0-11", "cgroup_v1": True},
    "offline CPUs": {**FOUR_GPUS, "online": "0-4,9-15"},
    "a policy": {**FOUR_GPUS, "policy": "prefer (many):0-1"},
    "taskset": {**FOUR_GPUS, "allowed_cpus": "1-2"},
    "no GPU": TWO_NODES,
    "vendors": {**TWO_NODES, "gpus": [{"vendor": "intel", "node": 0}, {"vendor": "amd", "node": 1}, {"node": 1}]},
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_read_back_is_what_was_read(tmp_path: Path, name: str) -> None:
    root = lay(tmp_path / "root", MACHINES[name])
    copy = captured(root, tmp_path / "copy")
    host, back = read_below(str(root), None, {}, SILENT), read_machine(copy, environ={})
    assert host == back
    assert read_topology(root, host) == read_topology(copy, back)
    assert read_machine(root, environ={}, vendor="amd").gpus == read_machine(copy, environ={}, vendor="amd").gpus


GPUS = (
    DriverGpu("0000:20:00.0", "GPU-a", "H100", 1, frozenset({8, 9}), ("MIG-a",)),
    DriverGpu(None, problem="lost: x"),
)


@pytest.mark.parametrize(
    "ask",
    [
        answers(nvidia=Answer(GPUS)),
        answers(nvidia=Answer(())),
        answers(nvidia=Answer(None, "it hangs: reboot", serious=True)),
        answers(nvidia=Answer(None, "missing: install")),
        answers(nvidia=Answer(()), amd=Answer(None, "it hangs: reboot", serious=True)),
    ],
)
@pytest.mark.parametrize("more", [[], [{"vendor": "amd", "node": 1}], [{"vendor": "intel", "node": 1}]])
@pytest.mark.parametrize("vendor", [None, "nvidia", "amd"])
def test_what_the_driver_said_and_why_it_did_not(
    tmp_path: Path, ask: Ask, more: list[dict[str, Any]], vendor: str | None
) -> None:
    root = lay(tmp_path / "root", {**TWO_NODES, "gpus": [{"node": 0}, {"node": 0}, *more]})
    copy = captured(root, tmp_path / "copy", ask, vendor)
    host = read_below(str(root), vendor, {}, ask)
    assert read_machine(copy, environ={}, vendor=vendor) == host


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel"])
def test_gpus_that_this_container_was_not_given_are_left_out(tmp_path: Path, vendor: str) -> None:
    root = lay_gpus(tmp_path / "root", vendor, [1, 2])
    copy = captured(root, tmp_path / "copy")
    back = read_machine(copy, environ={})
    assert back == read_below(str(root), None, {}, SILENT)
    assert [gpu.bdf for gpu in back.gpus] == ["0000:20:00.0", "0000:30:00.0"]


@pytest.mark.parametrize("name", ["status", "numa_maps"])
def test_what_cannot_be_read_is_unknown_in_the_capture_too(tmp_path: Path, name: str) -> None:
    root = lay(tmp_path / "root", RICH)
    put(root / f"proc/self/{name}", "Cpus_allowed_list:\tnonsense")
    back = read_machine(captured(root, tmp_path / "copy"), environ={})
    assert back == read_below(str(root), None, {}, SILENT)
    assert (back.limits.affinity, back.limits.policy)[name == "numa_maps"] is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "3",
        '{"problem": "x"}',
        '{"vendor": "amd", "problem": ""}',
        '{"vendor": "amd", "problem": 3}',
        '{"vendor": "amd", "problem": "x", "serious": 3}',
        '{"vendor": 3, "problem": "x"}',
        '{"vendor": "voodoo", "problem": "x"}',
    ],
)
def test_a_broken_reason_is_refused(tmp_path: Path, text: str) -> None:
    root = lay(tmp_path, TWO_NODES)
    put(root / "driver.json", text)
    with pytest.raises(MachineError, match=r"driver\.json is broken"):
        read_machine(root)


def test_this_host(tmp_path: Path) -> None:
    for path, text in capture_host(None, {}).items():
        put(tmp_path / path, text.rstrip("\n"))
    host, back = read_machine(environ={}), read_machine(tmp_path, environ={})
    assert (host.nodes, host.online, host.gpus, host.limits) == (back.nodes, back.online, back.gpus, back.limits)
    assert read_topology("/", host) == read_topology(tmp_path, back)
