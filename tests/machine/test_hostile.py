"""Files that are missing, unreadable, half-written, endless or no files narrow what is known; none ends the reading."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from numa_launch.machine.files import MAX_BYTES, read_first_line, read_text
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from numa_launch.machine.topology import read_topology
from tests.lay import FOUR_GPUS, Description, lay

RICH: Description = {
    **FOUR_GPUS,
    "gpus": [{"node": 0, "driver": "nvidia"}, {"node": 1}],
    "l3": ["0-7", "8-15"],
    "siblings": "adjacent",
    "cpuset": "0-15",
    "cpuset_mems": "0-1",
    "policy": "default",
    "isolated": "3",
    "cpu_model": "Xeon 6776P",
    "highest_perf": 46,
}
SAMPLE = [
    "proc/cpuinfo",
    "proc/self/cgroup",
    "proc/self/numa_maps",
    "proc/self/status",
    "sys/bus/pci/devices/0000:10:00.0/class",
    "sys/bus/pci/devices/0000:10:00.0/local_cpulist",
    "sys/bus/pci/devices/0000:10:00.0/numa_node",
    "sys/bus/pci/devices/0000:10:00.0/vendor",
    "sys/devices/system/cpu/cpu0/acpi_cppc/highest_perf",
    "sys/devices/system/cpu/cpu0/cache/index3/level",
    "sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list",
    "sys/devices/system/cpu/cpu0/topology/core_siblings_list",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node0/cpumap",
    "sys/devices/system/node/node0/distance",
    "sys/devices/system/node/node0/meminfo",
    "sys/fs/cgroup/pod/cpuset.cpus.effective",
    "sys/fs/cgroup/pod/cpuset.mems.effective",
]


def read_all(root: Path) -> Machine:
    machine = read_machine(root, environ={})
    topology = read_topology(root, machine)
    assert sorted(cpu for core in topology.cores for cpu in core) == sorted(machine.online)
    return machine


def spoil(path: Path, how: str) -> None:
    text = path.read_text()
    path.unlink()
    if how == "directory":
        path.mkdir()
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "endless":
        path.symlink_to("/dev/zero")
    elif how == "loop":
        path.symlink_to(path.name)
    elif how == "half-written":
        path.write_text(text[: len(text) // 2].rstrip("\n") + ",")
    elif how == "binary":
        path.write_bytes(b"\xff\xfe\x00\x80" * 100)
    elif how == "huge numbers":
        path.write_text("9" * 5000)
    elif how == "empty":
        path.write_text("")


@pytest.mark.parametrize(
    "how", ["missing", "directory", "fifo", "endless", "loop", "half-written", "binary", "huge numbers", "empty"]
)
@pytest.mark.parametrize("name", SAMPLE)
def test_one_spoilt_file_does_not_end_the_reading(tmp_path: Path, name: str, how: str) -> None:
    root = lay(tmp_path, RICH)
    spoil(root / name, how)
    machine = read_all(root)
    assert machine.online
    assert len(machine.nodes) == 2


@pytest.mark.parametrize("how", ["missing", "directory", "fifo", "endless", "loop", "half-written", "binary"])
def test_a_nodes_list_that_is_spoilt_gives_way_to_its_mask(tmp_path: Path, how: str) -> None:
    root = lay(tmp_path, RICH)
    spoil(root / "sys/devices/system/node/node0/cpulist", how)
    assert read_all(root).node_of_id[0].cpus == frozenset(range(8))


def test_the_sample_is_of_every_file_there_is(tmp_path: Path) -> None:
    root = lay(tmp_path, RICH)
    kinds = {path.name for path in root.rglob("*") if path.is_file()}
    assert kinds - {Path(name).name for name in SAMPLE} <= {"device"}


class Refusing:
    """Makes one file of a fake file system fail in a way that no directory on disk can, root or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def refuse(self, path: str, error: int, at: str) -> None:
        real: Any = getattr(os, at)
        opened: dict[int, str] = {}
        real_open = os.open

        def open_(name: Any, *args: Any, **kwargs: Any) -> int:
            if at == "open" and str(name).endswith(path):
                raise OSError(error, os.strerror(error))
            fd = real_open(name, *args, **kwargs)
            opened[fd] = str(name)
            return fd

        def read(fd: int, size: int) -> bytes:
            if opened.get(fd, "").endswith(path):
                raise OSError(error, os.strerror(error))
            return bytes(real(fd, size))

        self.monkeypatch.setattr(os, "open", open_)
        if at == "read":
            self.monkeypatch.setattr(os, "read", read)


@pytest.mark.parametrize("at", ["open", "read"])
@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ENODEV, errno.EINVAL])
@pytest.mark.parametrize("name", ["node0/cpulist", "node0/meminfo", "self/status", "self/numa_maps", "numa_node"])
def test_a_file_that_fails_does_not_end_the_reading(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch, name: str, error: int, at: str
) -> None:
    root = lay(Path("/captured"), RICH)
    Refusing(monkeypatch).refuse(name, error, at)
    machine = read_all(root)
    unknown = {"self/status": machine.limits.affinity, "self/numa_maps": machine.limits.policy}
    assert unknown.get(name) is None
    assert machine.node_of_id[0].cpus == frozenset(range(8))


def test_an_endless_file_is_given_up(fs: FakeFilesystem) -> None:
    fs.create_file("/endless", contents="1," * MAX_BYTES)
    assert read_text("/endless") is None
    assert read_text("/endless", most=6) == "1,1,1,"
    assert read_first_line("/endless") is not None


def test_names_that_cannot_be_opened() -> None:
    assert read_text("/nul\0byte") is None
    assert read_first_line("/nul\0byte") is None
