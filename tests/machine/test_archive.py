"""Captures in one file: what they may be packed like, and what a hostile or broken one may not do."""

import gzip
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from numa_launch.errors import MachineError
from numa_launch.machine import archive
from numa_launch.machine.archive import opened, stays_inside
from numa_launch.machine.read import read_machine
from tests.lay import FOUR_GPUS, lay

Entry = tuple[tarfile.TarInfo, bytes]


def file_entry(name: str, content: bytes = b"x") -> Entry:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info, content


def link_entry(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def pack(path: Path, *entries: Entry) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("compression", ["", "z", "j", "J"])
@pytest.mark.parametrize("inner", [".", "node17"])
def test_a_machine_packed_by_tar_is_read(tmp_path: Path, compression: str, inner: str) -> None:
    lay(tmp_path / "packed" / inner, FOUR_GPUS)
    file = tmp_path / "m.tar"
    subprocess.run(["tar", f"-c{compression}f", str(file), "-C", str(tmp_path / "packed"), "."], check=True)
    machine = read_machine(file, environ={})
    assert [gpu.node for gpu in machine.gpus] == [0, 0, 1, 1]
    assert machine == read_machine(tmp_path / "packed" / inner, environ={})


def test_links_as_sysfs_has_them_are_kept(tmp_path: Path) -> None:
    device = "sys/devices/pci0000:00/0000:10:00.0"
    files = {"vendor": "0x10de", "class": "0x030200", "numa_node": "1"}
    file = pack(
        tmp_path / "m.tar.gz",
        file_entry("sys/devices/system/cpu/online", b"0-3"),
        file_entry("sys/devices/system/node/node0/cpulist", b"0-1"),
        file_entry("sys/devices/system/node/node1/cpulist", b"2-3"),
        link_entry("sys/bus/pci/devices/0000:10:00.0", "../../../devices/pci0000:00/0000:10:00.0"),
        link_entry(f"{device}/subsystem", "../../../bus/pci"),
        link_entry("sys/loop", "loop"),
        *(file_entry(f"{device}/{name}", text.encode()) for name, text in files.items()),
    )
    assert [(gpu.bdf, gpu.node) for gpu in read_machine(file, environ={}).gpus] == [("0000:10:00.0", 1)]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    file = pack(tmp_path / "m.tar.gz", file_entry("sys/devices/system/cpu/online", b"0-3"))
    with opened(file) as top:
        assert os.path.exists(f"{top}/sys/devices/system/cpu/online")
        assert len(os.listdir(tmp_path / "temporary")) == 1
    with pytest.raises(ZeroDivisionError), opened(file):
        _ = 1 / 0
    with pytest.raises(MachineError):
        read_machine(pack(tmp_path / "e.tar.gz"))
    assert os.listdir(tmp_path / "temporary") == []


ONLINE = file_entry("sys/devices/system/cpu/online", b"0-3")


@pytest.mark.parametrize(
    "entries",
    [
        [file_entry("../escaped")],
        [file_entry("sys/../../escaped")],
        [file_entry("/tmp/numa-launch-escaped")],
        [link_entry("sys/out", "../.."), file_entry("sys/out/escaped")],
        [link_entry("sys/out", "/tmp"), file_entry("sys/out/numa-launch-escaped")],
        [link_entry("out", ".."), file_entry("out/escaped")],
        [
            link_entry("d1/d2/d3/s", "../../.."),
            link_entry("d1/d2/d3/s/l", ".."),
            link_entry("d1/d2/d3/s/l/escaped", "x"),
            link_entry("l/escaped", "x"),
        ],
        [link_entry("d/s", ".."), link_entry("d/s/up", ".."), file_entry("up/escaped")],
        [file_entry("a/" * 1200 + "deep")],
        [file_entry("a/" * 900 + "deep"), file_entry("n" * 600)],
        [link_entry("hard", "/etc/passwd", tarfile.LNKTYPE)],
        [link_entry("fifo", "", tarfile.FIFOTYPE), link_entry("dev", "", tarfile.CHRTYPE)],
    ],
)
def test_a_hostile_archive_writes_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: list[Entry]
) -> None:
    temporary = tmp_path / "a/temporary"
    temporary.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with opened(pack(tmp_path / "m.tar.gz", *entries, ONLINE)) as top:
        inside = {path for path in Path(top).rglob("*") if not path.is_dir()}
        assert {path.name for path in inside} <= {"online", "escaped", "numa-launch-escaped"}
        assert all(path.resolve().is_relative_to(top) and not path.is_fifo() for path in inside)
    assert not list(tmp_path.rglob("*escaped*"))
    assert not Path("/tmp/numa-launch-escaped").exists()


@pytest.mark.parametrize(
    ("name", "target", "inside"),
    [
        ("sys/a", "b", True),
        ("sys/a", "../proc", True),
        ("sys/bus/pci/devices/x", "../../../devices/x", True),
        ("sys/a", "./b", True),
        ("sys/a", "../..", False),
        ("a", "..", False),
        ("a", "/etc", False),
        ("sys/a", "b/../../..", False),
        ("sys/a", "b/..", False),
        ("sys/a", "...", True),
    ],
)
def test_links_that_stay_inside(name: str, target: str, inside: bool) -> None:
    assert stays_inside(name, target) == inside


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"junk" * 1000),
        lambda path: path.write_bytes(gzip.compress(b"junk" * 1000)),
        lambda path: path.write_bytes(gzip.compress(b"\0" * 10240)),
        lambda path: cut(pack(path, ONLINE, file_entry("big", os.urandom(100_000)))),
        lambda path: spoil(pack(path, file_entry("big", os.urandom(100_000)), ONLINE)),
        lambda path: cut(pack(path, ONLINE)),
        lambda path: pack(path, file_entry("sys", b"x"), ONLINE),
        lambda path: pack(path, file_entry("n" * 300), ONLINE),
        lambda path: pack(path, file_entry("a\udcff\0b"), file_entry("sys/devices/system/cpu/online", b"")),
        lambda path: pack(path, file_entry("readme.txt")),
        os.mkfifo,
        lambda path: path.symlink_to("/nowhere"),
        lambda path: None,
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path: Path, make: Callable[[Path], object]) -> None:
    file = tmp_path / "m.tar.gz"
    make(file)
    with pytest.raises(MachineError) as caught:
        read_machine(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)
    assert "numa-launch-" not in str(caught.value)


def test_a_file_that_names_the_capture_in_errors(tmp_path: Path) -> None:
    file = pack(tmp_path / "m.tar.gz", ONLINE, file_entry("gpus.json", b"{"))
    with pytest.raises(MachineError, match=rf"^{file}/gpus\.json is broken"):
        read_machine(file)


def claiming(name: str, size: int, kind: bytes = tarfile.REGTYPE, pax: dict[str, str] | None = None) -> bytes:
    """Return a header that claims a content of this size, which does not follow."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.pax_headers = kind, size, pax or {}
    return info.tobuf(tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "content",
    [
        claiming("sys/a", 10**9),
        claiming("sys/a", 10**9, tarfile.GNUTYPE_LONGNAME),
        claiming("sys/a", 10**9, tarfile.XHDTYPE),
        claiming("sys/a", 0, pax={"GNU.sparse.map": "0,5", "GNU.sparse.size": "-100000000000"}) * 3,
    ],
)
@pytest.mark.parametrize("zeros", [0, 600])
def test_an_archive_made_to_fill_disk_or_memory(tmp_path: Path, content: bytes, zeros: int) -> None:
    """In a process that may have little memory: a header's word is not taken for what follows."""
    file = tmp_path / "m.tar.gz"
    with gzip.open(file, "wb", compresslevel=1) as packed:
        packed.write(content)
        for _ in range(zeros):
            packed.write(bytes(1 << 20))
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, 1 << 24))
from numa_launch.errors import MachineError
from numa_launch.machine.read import read_machine
try:
    read_machine({str(file)!r})
except MachineError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith(f"{file} is no machine: "), done.stderr


def test_too_many_files_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_MEMBERS", 2)
    file = pack(tmp_path / "m.tar.gz", *(file_entry(f"sys/{i}") for i in range(3)))
    with pytest.raises(MachineError, match="holds more than 2 files"):
        read_machine(file)


def test_no_room_to_unpack_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(MachineError, match="TMPDIR"):
        read_machine(pack(tmp_path / "m.tar.gz", ONLINE))
