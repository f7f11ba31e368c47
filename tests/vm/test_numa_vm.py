"""scripts/numa-vm by itself: status, output, time limit, what it leaves behind, and what it says is missing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vm.conftest import NUMA_VM, missing
from tests.vm.conftest import NUMA_VM_MODULE as MODULE

SMALL = [str(NUMA_VM), "--node", "cpus=0,mem=256M", "--node", "cpus=1,mem=256M"]


@pytest.fixture
def guests_run() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give numa-vm a temporary directory of its own, to see what it leaves there beside other guests."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.mark.guest
@pytest.mark.usefixtures("guests_run")
def test_status_output_environment_and_shares(tmp_path: Path, own_directory: Path) -> None:
    script = f"echo out $WORD; echo err >&2; echo kept >{tmp_path}/file; touch /etc/gone; numactl -H | head -1; exit 37"
    options = ["--env", "WORD=a b", "--share", str(tmp_path)]
    done = subprocess.run([*SMALL, *options, "--", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 37, done.stderr
    assert done.stdout.splitlines()[0] == "out a b"
    assert "available: 2 nodes (0-1)" in done.stdout
    assert "err" in done.stderr
    assert (tmp_path / "file").read_text() == "kept\n"
    assert not Path("/etc/gone").exists()
    assert os.listdir(own_directory) == []


@pytest.mark.guest
@pytest.mark.usefixtures("guests_run")
def test_several_words_are_taken_as_they_are() -> None:
    done = subprocess.run([*SMALL, "--", "printf", "<%s>", "a b", "$HOME"], capture_output=True, text=True, timeout=120)
    assert done.stdout == "<a b><$HOME>"


@pytest.mark.guest
@pytest.mark.usefixtures("guests_run")
def test_the_time_limit(own_directory: Path) -> None:
    done = subprocess.run([*SMALL, "--timeout", "12", "--", "sleep 600"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 124
    assert "timed out after 12 s" in done.stderr
    assert os.listdir(own_directory) == []


@pytest.mark.guest
@pytest.mark.usefixtures("guests_run")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_behind(number: int, own_directory: Path) -> None:
    command = [*SMALL, "--", "echo started; sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "started\n"
        child.send_signal(number)
        assert child.wait(30) == 128 + number
    assert os.listdir(own_directory) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)


def test_what_is_missing_is_one_line(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, *SMALL, "--", "true"], env=environ, capture_output=True, text=True)
    assert done.returncode == 125
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "numa-vm: packages are missing to run a guest: apt-get install qemu-system-x86 busybox-static"
    )


@pytest.mark.guest
@pytest.mark.usefixtures("guests_run")
def test_a_share_that_is_no_directory() -> None:
    done = subprocess.run([*SMALL, "--share", "/nowhere", "--", "true"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (125, "numa-vm: --share /nowhere: it is not a directory\n")


BAD = ["", "-- true", "--node cpus=0,mem=512K -- true", "--node mem=1G -- true", "--node cpus=0", "--node x -- true"]


@pytest.mark.parametrize("args", BAD)
def test_bad_input_is_a_usage_error(args: str) -> None:
    done = subprocess.run([str(NUMA_VM), *args.split()], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_machine_as_qemus_arguments() -> None:
    node, guest = MODULE["parse_node"], MODULE["Guest"]
    made = guest((node("cpus=0-1+4,mem=1G"), node("cpus=2-3"), node("mem=256M")), {(0, 1): 12}, (1, -1), "threads=2")
    arguments = " ".join(MODULE["node_arguments"](made) + MODULE["gpu_arguments"](made))
    assert arguments.startswith("-m 1280M -smp 5,threads=2 -object memory-backend-ram,id=memory0,size=1024M ")
    for wanted in (
        "node,nodeid=0,cpus=0-1,cpus=4-4,memdev=memory0",
        "-numa node,nodeid=1,cpus=2-3 ",
        "-numa node,nodeid=2,memdev=memory2",
        "dist,src=1,dst=0,val=12",
        "dist,src=2,dst=2,val=10",
        "dist,src=2,dst=0,val=20",
        "bus_nr=32,numa_node=1",
        "bus_nr=40 -device",
    ):
        assert wanted in arguments


def test_a_hung_boot_is_tried_again_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = iter([None, None, 7])
    run_in_guest = MODULE["run_in_guest"]
    monkeypatch.setitem(run_in_guest.__globals__, "boot_files", lambda: (Path("k"), Path("r")))
    monkeypatch.setitem(run_in_guest.__globals__, "boot", lambda *_: next(statuses))
    job = MODULE["Job"](["true"], [], [], 60, 15, 4, False)
    assert run_in_guest(None, job) == 7
    statuses = iter([None] * 4)
    with pytest.raises(MODULE["CannotRun"], match="4 tries"):
        run_in_guest(None, job)
