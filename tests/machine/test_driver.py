"""Asking a library in a process of its own: one that hangs, crashes, prints or answers nonsense; and asking once."""

import json
import os
import resource
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from numa_launch import LaunchConfig
from numa_launch.apply.detect import detect
from numa_launch.bounded import HUNG
from numa_launch.machine import driver
from numa_launch.machine.answers import Answer, gpus_json, parse_gpus, parse_processes
from numa_launch.machine.driver import ask_driver, ask_processes, parsed, without_paths
from numa_launch.machine.vendors import VENDORS
from numa_launch.machine.vendors.vendor import DriverGpu
from tests.lay import TWO_NODES, lay
from tests.machine.vendors.live import read_live, use_stub
from tests.stubs.build import describe, needs_compiler

NVIDIA = VENDORS["nvidia"]
ONE_GPU = [{"bdf": "0000:10:00.0", "uuid": "GPU-a"}]


def own_children() -> str:
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()


@needs_compiler
@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetUUID"])
def test_a_library_that_hangs_is_waited_for_once(
    nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    calls = tmp_path / "calls"
    use_stub(monkeypatch, nvml, tmp_path / "d", describe(ONE_GPU, hang=function, calls=calls))
    monkeypatch.setattr(driver, "TIME_LIMIT_S", 1)
    root = lay(tmp_path / "root", {**TWO_NODES, "gpus": [{"node": 1}]})
    before = own_children()
    for _ in range(3):
        live = read_live(root)
        assert [gpu.node for gpu in live.gpus] == [1]
        assert live.gap == "NVML: it gave no answer in 1 s: look for GPU errors in dmesg"
    assert calls.read_text().count("nvmlInitWithFlags") == 1
    assert own_children() == before


@needs_compiler
def test_a_process_asks_once_however_many_workers_start(
    nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    use_stub(monkeypatch, nvml, tmp_path / "d", describe(ONE_GPU, calls=calls))
    root = lay(tmp_path / "root", {**TWO_NODES, "gpus": [{"node": 1}]})
    for rank in range(8):
        assert read_live(root, {"CUDA_VISIBLE_DEVICES": str(rank)}).visible == ((0,) if rank == 0 else ())
    assert calls.read_text().count("nvmlInitWithFlags") == 1


@needs_compiler
def test_the_child_finds_what_this_process_finds(nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever path the binding was put on, with whatever else on it; nothing that Python reads at its start counts."""
    use_stub(monkeypatch, nvml, tmp_path / "d", describe(ONE_GPU))
    odd = tmp_path / "a 'path' \udcff"
    odd.mkdir()
    real = next(path for path in sys.path if (Path(path) / "pynvml.py").exists())
    (odd / "pynvml.py").write_bytes((Path(real) / "pynvml.py").read_bytes())
    monkeypatch.setattr(sys, "path", [str(odd), *(path for path in sys.path if path != real), odd])
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    answer = ask_driver(NVIDIA, 15)
    assert answer.gpus and answer.gpus[0].uuid == "GPU-a"


@needs_compiler
def test_a_child_whose_end_somebody_else_collects(nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    use_stub(monkeypatch, nvml, tmp_path / "d", describe(ONE_GPU))
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert ask_driver(NVIDIA, 15).gpus
    finally:
        signal.signal(signal.SIGCHLD, before)


@needs_compiler
def test_threads_that_ask_together_ask_once(nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    use_stub(monkeypatch, nvml, tmp_path / "d", describe(ONE_GPU, calls=calls))
    together, answers = threading.Barrier(8), []

    def ask() -> None:
        together.wait()
        answers.append(ask_driver(NVIDIA, 15))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 and all(answer.gpus for answer in answers)
    assert calls.read_text().count("nvmlInitWithFlags") == 1


@needs_compiler
@pytest.mark.parametrize(
    "noise",
    [
        {"PYTHONVERBOSE": "1"},
        {"PYTHONPROFILEIMPORTTIME": "1"},
        {"PYTHONMALLOCSTATS": "1"},
        {"LD_PRELOAD": "/nowhere/lib.so"},
        {"LD_DEBUG": "statistics"},
        {"PYTHONCOERCECLOCALE": "warn", "LC_ALL": "C"},
    ],
)
def test_an_environment_that_makes_programs_talk(
    nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: dict[str, str]
) -> None:
    use_stub(monkeypatch, nvml, tmp_path / "d", describe(ONE_GPU))
    for name, value in noise.items():
        monkeypatch.setenv(name, value)
    assert ask_driver(NVIDIA, 15).gpus


@needs_compiler
def test_a_child_whose_parent_was_killed_ends_itself(
    nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stub(monkeypatch, nvml, tmp_path / "d", describe(ONE_GPU, hang="nvmlInitWithFlags"))
    program = (
        "from numa_launch.machine import driver\nfrom numa_launch.machine.vendors import VENDORS\n"
        "import os, sys\nos.set_inheritable(int(sys.argv[1]), True)\n"
        "driver.TIME_LIMIT_S = 100\ndriver.ask_driver(VENDORS['nvidia'], 15)"
    )
    reader, writer = os.pipe()  # whose end tells that the child, which inherits it, has ended
    parent = subprocess.Popen([sys.executable, "-c", program, str(writer)], pass_fds=[writer])
    os.close(writer)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    while not children.read_text():
        assert parent.poll() is None
    parent.kill()
    parent.wait()
    open_ends = select.poll()
    open_ends.register(reader, select.POLLIN)
    assert open_ends.poll(0) == []  # the child lives on, and has it open
    with os.fdopen(reader, "rb") as alive:
        assert alive.read() == b""  # at the latest when the child's own limit has passed


@needs_compiler
def test_a_program_without_poll_can_ask(nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As eventlet leaves the module select."""
    use_stub(monkeypatch, nvml, tmp_path / "d", describe(ONE_GPU))
    monkeypatch.delattr(select, "poll")
    assert ask_driver(NVIDIA, 15).gpus


def test_a_process_without_descriptors_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, limits[1]))
        with pytest.raises(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        answer = ask_driver(NVIDIA, 15)
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert str(answer.problem).startswith("it could not be asked (Too many open files)")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/alice/site/lib.so: file too short", "lib.so: file too short"),
        ("cannot import 'x' from 'os' (/root/.pyenv/os.py)", "cannot import 'x' from 'os' (os.py)"),
        ("two\nlines of '/home/alice/a b'", "two lines of 'a b'"),
        ("NVML/RM version mismatch", "NVML/RM version mismatch"),
    ],
)
def test_messages_name_no_directories(text: str, left: str) -> None:
    assert without_paths(text) == left


@pytest.mark.parametrize("executable", ["", None, "/usr/bin/uwsgi"])
def test_a_program_that_embeds_python_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert "no plain python" in str(ask_driver(NVIDIA, 15).problem)


def test_a_frozen_program_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert "no plain python" in str(ask_driver(NVIDIA, 15).problem)


def test_a_python_that_is_gone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    answer = ask_driver(NVIDIA, 15)
    assert answer.serious and str(answer.problem).startswith("it could not be asked (No such file or directory)")


@pytest.mark.parametrize(
    ("status", "output", "problem"),
    [
        (HUNG, "", "it gave no answer in 10 s"),
        (-11, "", "it crashed (signal 11)"),
        (-11, "[]", "it crashed (signal 11)"),
        (1, "", "the Python that asks it ended with 1: check PYTHONHOME"),
        (126, "Argument list too long", "it could not be asked (Argument list too long)"),
        (0, "", "it ended without an answer"),
        (None, "", "it ended without an answer"),
        (0, "[]", "its answer is broken"),
        (0, "3", "its answer is broken"),
        (0, "{}", "its answer is broken"),
        (0, '{"gpus": 3}', "its answer is broken (it is not a list)"),
        (0, '{"gpus": [{"cpu_affinity": "x"}]}', "its answer is broken ('x' is not a list of ids"),
        (0, '{"gpus": [{"mig": [1]}]}', "its answer is broken (mig is not a list of texts)"),
        (0, '{"gpus": [{"numa_node": true}]}', "its answer is broken (numa_node is True)"),
        (0, "[" * 100_000, "its answer is broken"),
    ],
)
def test_answers_that_are_none(status: int, output: str, problem: str) -> None:
    answer = Answer(*parsed(status, output, parse_gpus))
    assert answer.gpus is None and answer.serious
    assert str(answer.problem).startswith(problem)
    assert "\n" not in str(answer.problem)


@needs_compiler
def test_processes_are_asked_for_anew_each_time(nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pids in ([], [4711], [4711, 4712]):
        use_stub(monkeypatch, nvml, tmp_path / "d", describe([{**ONE_GPU[0], "compute": pids}]))
        answer = ask_processes(NVIDIA)
        assert answer.problem is None and answer.gpus
        assert [(gpu.bdf, gpu.pids, gpu.problem) for gpu in answer.gpus] == [("0000:10:00.0", tuple(pids), None)]


QUESTION = "nvmlDeviceGetComputeRunningProcesses_v3"


@needs_compiler
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"hang": QUESTION}, "it gave no answer in 1 s: look for GPU errors in dmesg"),
        ({"crash": QUESTION}, "it crashed (signal 6): look for GPU errors in dmesg"),
        ({"fail": "nvmlInitWithFlags 9"}, "Driver Not Loaded: load the kernel module nvidia"),
    ],
)
def test_a_library_that_does_not_say_who_holds_a_gpu(
    nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], problem: str
) -> None:
    use_stub(monkeypatch, nvml, tmp_path / "d", describe(ONE_GPU, **settings))
    monkeypatch.setattr(driver, "TIME_LIMIT_S", 1 if "hang" in settings else 10)
    before = own_children()
    assert ask_processes(NVIDIA) == (None, problem)
    assert own_children() == before


def test_processes_of_a_vendor_without_a_library_or_a_package() -> None:
    assert ask_processes(VENDORS["intel"]) == (None, None)
    assert ask_processes(VENDORS["amd"]) == (None, "the Python package amdsmi is missing: pip install amdsmi")


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ('{"gpus": {}}', "its answer is broken (it is not a list)"),
        ('{"gpus": [3]}', "its answer is broken (an entry is not an object)"),
        ('{"gpus": [{"pids": 3}]}', "its answer is broken (pids is 3)"),
        ('{"gpus": [{"pids": [4711, true]}]}', "its answer is broken (pids is not a list of numbers)"),
        ('{"gpus": [{"bdf": "x"}]}', "its answer is broken ('x' is not a PCI address"),
        ("[]", "its answer is broken"),
    ],
)
def test_processes_that_are_none(output: str, problem: str) -> None:
    gpus, said, _ = parsed(0, output, parse_processes)
    assert gpus is None and str(said).startswith(problem)


def test_pids_that_no_process_can_have_are_dropped() -> None:
    pids = [0, -1, 1, 4194303, 4194304, 4294967295, 10**30]
    (gpu,) = parse_processes(json.loads(json.dumps([{"bdf": "00000000:1B:00.0", "pids": pids}])))
    assert gpu == ("0000:1b:00.0", (1, 4194303), None)


def test_an_answer_survives_the_way_through_json() -> None:
    gpus = (
        DriverGpu("0000:07:00.0", "GPU-a", "H100", 1, frozenset({0, 1, 5}), ("MIG-a",), None, "nvidia"),
        DriverGpu("0001:07:00.0", problem="GPU is lost: reboot", vendor="nvidia"),
    )
    assert parse_gpus(json.loads(json.dumps(gpus_json(gpus, "nvidia")))) == gpus


def test_this_host_is_asked_only_about_vendors_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither library is here, so that being asked would show."""
    if any(os.path.lexists(sign) for vendor in VENDORS.values() if vendor.library for sign in vendor.library.signs):
        pytest.skip("this host has a GPU driver")
    machine = detect(LaunchConfig(), {}).machine
    if not machine.gpus:
        assert machine.gap is None
    assert driver._answers == {}
