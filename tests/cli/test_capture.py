"""``numa-launch capture``: where it writes, what it refuses, and that ``--root FILE`` reads it on the command line."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_run import NUMA_LAUNCH, run
from tests.lay import FOUR_GPUS, lay
from tests.live import AS_ROOT, can_unshare


def test_a_file_and_stdout_hold_the_same(tmp_path: Path) -> None:
    file = tmp_path / "host.tar.gz"
    done = run("capture", str(file))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"{file}: ") and done.stderr.endswith(" kB\n")
    piped = subprocess.run([NUMA_LAUNCH, "capture", "-"], capture_output=True)
    assert piped.stdout == file.read_bytes()
    assert len(piped.stdout) < 300_000
    assert run("topo", "--json", "--root", str(file)).stdout == run("topo", "--json").stdout


def test_an_older_capture_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "host.tar.gz"
    file.write_text("older")
    link = tmp_path / "link.tar.gz"
    link.symlink_to(file)
    before = os.umask(0o022)
    try:
        assert run("capture", str(link)).returncode == 0
    finally:
        os.umask(before)
    assert link.is_symlink() and file.read_bytes().startswith(b"\x1f\x8b")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host.tar.gz", "link.tar.gz"]


def test_a_device_is_written_into_and_stays_one() -> None:
    assert run("capture", "/dev/null").returncode == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    full = run("capture", "/dev/full")
    assert full.returncode == 1
    assert full.stderr == "Error: Could not open file '/dev/full': No space left on device\n"


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_pipe_by_name_is_written_into(name: str) -> None:
    assert subprocess.run([NUMA_LAUNCH, "capture", name], capture_output=True).stdout[:2] == b"\x1f\x8b"


def test_a_closed_stdout_is_one_sentence() -> None:
    done = subprocess.run(["sh", "-c", f"{NUMA_LAUNCH} capture - >&-"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "Error: Could not open file '-': stdout is closed\n"


@pytest.mark.skipif(not can_unshare(), reason="no mount namespaces")
def test_a_file_that_cannot_be_replaced_is_written_into(tmp_path: Path) -> None:
    """As docker gives a single file to a container."""
    given, place = tmp_path / "given.tar.gz", tmp_path / "place.tar.gz"
    for path in (given, place):
        path.write_text("older")
    mounted = f"mount --bind {given} {place} && {NUMA_LAUNCH} capture {place}"
    done = subprocess.run([*AS_ROOT, "sh", "-c", mounted], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert given.read_bytes()[:2] == b"\x1f\x8b"


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["capture"], 2),
        (["capture", "/"], 2),
        (["capture", "/nowhere/host.tar.gz"], 1),
        (["capture", "a", "b"], 2),
        (["--tp", "2", "capture", "a"], 2),
        (["capture", "a", "--", "true"], 2),
        (["capture", "--vendor", "voodoo", "a"], 2),
    ],
)
def test_misuse_is_one_sentence(args: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*args)
    assert done.returncode == status
    assert done.stderr.startswith("Error: ") and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_captured_machine_is_planned_for_from_its_file(tmp_path: Path) -> None:
    root = lay(tmp_path / "root", FOUR_GPUS)
    file = tmp_path / "m.tar.gz"
    subprocess.run(["tar", "czf", str(file), "-C", str(root), "."], check=True)
    for args in (["--dry-run", "--json"], ["topo"], ["--dry-run", "--bind", "--rank", "2"]):
        assert run(*args, "--root", str(file)).stdout == run(*args, "--root", str(root)).stdout != ""


def test_a_broken_file_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "m.tar.gz"
    file.write_bytes(b"junk")
    for args in (["topo"], ["--dry-run"]):
        done = run(*args, "--root", str(file))
        assert done.returncode == 2
        assert done.stderr.startswith(f"Error: {file} is no machine: it is broken, or no tar file")
        assert "Traceback" not in done.stderr
