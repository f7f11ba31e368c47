"""The built-in backend as a program: it leaves what numactl leaves, and refuses what numactl refuses."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from numa_launch.apply.backend import BUILTIN, FLAGS
from numa_launch.idsets import parse_ids
from tests.host import ALLOWED, CPU_A, CPU_B, needs_numactl, node_of
from tests.vm import truth

OURS = [sys.executable, *FLAGS, BUILTIN]
LOCALES: list[dict[str, str]] = [{}, {"LC_ALL": "C"}, {"LANG": "C"}, {"LC_CTYPE": "C"}, {"LANG": "C.UTF-8"}]
NODE = node_of(CPU_B)
ARM_PYTHON = Path(__file__).parents[2] / ".cache/arm-python/root"
on_each = pytest.mark.parametrize(
    "backend", [pytest.param(["numactl"], marks=needs_numactl), OURS], ids=["numactl", "builtin"]
)


def run(command: list[str], *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, **options)


def state_under(command: list[str], *arguments: str) -> dict[str, Any]:
    done = run(command, *arguments, "--", sys.executable, "-S", str(Path(truth.__file__)))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_it_imports_os_sys_and_ctypes_only() -> None:
    tree = ast.walk(ast.parse(Path(BUILTIN).read_text()))
    imported = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"os", "sys", "ctypes"}
    assert not any(isinstance(node, ast.ImportFrom) for node in tree)


@needs_numactl
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [f"--physcpubind={CPU_B}"],
        [f"--physcpubind={CPU_A},{CPU_B}", f"--membind={NODE}"],
        [f"--cpunodebind={NODE}", f"--preferred={NODE}"],
        [f"--physcpubind={CPU_B}", f"--preferred-many={NODE}"],
        [f"--interleave={NODE}"],
        ["--all", f"--physcpubind={CPU_B}", f"--membind={NODE}-{NODE}"],
    ],
    ids=" ".join,
)
def test_the_kernel_shows_what_it_shows_after_numactl(arguments: list[str]) -> None:
    ours, theirs = (state_under(backend, *arguments) for backend in (["numactl"], OURS))
    assert ours == theirs


NOT_THERE = str(max(ALLOWED) + 4000)


@on_each
@pytest.mark.parametrize(
    ("arguments", "meaning"),
    [
        (["--membind=4000"], "out of range"),
        (["--preferred=4000"], "out of range"),
        (["--preferred-many=4000"], "out of range"),
        (["--interleave=4000"], "out of range"),
        (["--cpunodebind=4000"], "out of range"),
        ([f"--physcpubind={NOT_THERE}"], "out of range"),
        ([f"--physcpubind={CPU_A},{NOT_THERE}"], "out of range"),
        ([f"--physcpubind={CPU_A}-{NOT_THERE}"], "out of range"),
        (["--physcpubind=abc"], "invalid"),
        (["--membind=abc"], "invalid"),
        (["--preferred=0,1"], "invalid|usage|out of range"),
        (["--no-such-option"], "unrecognized option"),
        (["--membind=4000", f"--physcpubind={CPU_A}"], "out of range"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_the_first_line(backend: list[str], arguments: list[str], meaning: str) -> None:
    done = run(backend, *arguments, "true")
    assert done.returncode == 1
    assert any(word in done.stdout + done.stderr for word in meaning.split("|"))
    if backend == OURS:
        assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    "text", ["", "1-", "-1", "4-1", "1,,2", "1:2", "0x1", "!0", "+0", "all", "٣", "0-99999999999999999999"]
)
@pytest.mark.parametrize("option", ["physcpubind", "membind", "preferred"])
def test_a_malformed_list_is_one_line(option: str, text: str) -> None:
    done = run(OURS, f"--{option}={text}", "--", "true")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("numa-launch: ")
    assert "is invalid" in line


@pytest.mark.parametrize("command", [[], ["--"], ["--", ""], ["--", "", "true"], [""]], ids=str)
def test_a_missing_command_is_one_line(command: list[str]) -> None:
    done = run(OURS, f"--physcpubind={CPU_A}", *command)
    assert done.returncode == 1
    assert done.stderr == "numa-launch: a command is needed behind the arguments\n"


@pytest.mark.parametrize("argument", ["-m0", "--membind", "--help", "--physcpubind"])
def test_an_argument_that_the_wrapper_never_gives_is_one_line(argument: str) -> None:
    done = run(OURS, argument, "--", "true")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


@pytest.mark.skipif(len(ALLOWED) < 2, reason="one CPU")
@pytest.mark.parametrize(
    "arguments", [[f"--physcpubind={CPU_B}"], [f"--physcpubind={CPU_A}-{CPU_B}"], [f"--cpunodebind={NODE}"]], ids=str
)
def test_it_never_leaves_the_affinity_it_finds_unless_told_so(arguments: list[str]) -> None:
    narrowed = ["taskset", "-c", str(CPU_A), *OURS]
    done = run(narrowed, *arguments, "true")
    assert (done.returncode, done.stdout) == (1, "")
    assert "out of range" in done.stderr
    assert CPU_B in parse_ids(state_under(narrowed, "--all", *arguments)["cpus"])


SHOW = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.getpid(), os.read(int(sys.argv[1]), 9).decode()]))
sys.exit(37)
"""


@on_each
def test_pid_arguments_descriptors_and_exit_status_pass_through(backend: list[str]) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"passed on")
    os.close(writer)
    odd: list[str | bytes] = [str(reader), "a b", "", "*", "--", "--membind=9", "'\"", "line\nbreak", b"\xff\xfe"]
    command: list[str | bytes] = [*backend, f"--physcpubind={CPU_B}", "--", sys.executable, "-c", SHOW, *odd]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[reader])
    out, _ = child.communicate()
    os.close(reader)
    argv, pid, passed = json.loads(out)
    assert [os.fsencode(argument) for argument in argv] == [os.fsencode(argument) for argument in odd]
    assert (pid, passed, child.returncode) == (child.pid, "passed on", 37)


@on_each
def test_signals_are_as_they_were_but_what_python_ignores(backend: list[str]) -> None:
    show = ["grep", "SigIgn", "/proc/self/status"]

    def ignore_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    plain, ignoring = (run(backend, "--", *show, preexec_fn=before).stdout for before in (None, ignore_interrupts))
    masks = [int(text.split()[1], 16) for text in (plain, ignoring)]
    assert [bool(mask & 1 << signal.SIGINT - 1) for mask in masks] == [False, True]
    assert not any(mask & 1 << number - 1 for mask in masks for number in (signal.SIGPIPE, signal.SIGXFSZ))


@on_each
@pytest.mark.parametrize("locale", LOCALES, ids=str)
def test_the_environment_is_untouched(backend: list[str], locale: dict[str, str]) -> None:
    environ = {**locale, "PATH": os.environ["PATH"], "BASH_FUNC_module%%": "() { :\n}", "ODD": "\udcff", "EMPTY": ""}
    done = subprocess.run([*backend, "--", "env", "-0"], env=environ, capture_output=True)
    given = {os.fsencode(f"{name}={value}") for name, value in environ.items()}
    assert set(done.stdout.split(b"\0")) - {b""} == given


def test_what_cannot_be_executed_ends_as_in_a_shell(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo run by sh\n")
    for command, status in (("no-such-command", 127), ("/nowhere/x", 127), (str(tmp_path), 126), (str(plain), 126)):
        done = run(OURS, "--", command)
        assert (done.returncode, len(done.stderr.splitlines())) == (status, 1)
        assert command in done.stderr
    plain.chmod(0o755)
    assert run(OURS, "--", str(plain)).stdout == "run by sh\n"
    environ = {"PATH": f"{tmp_path}/none:{tmp_path}"}
    assert run(OURS, "--", "plain", env=environ).stdout == "run by sh\n"


@pytest.mark.skipif(
    not (ARM_PYTHON / "usr/bin/python3").exists() or not shutil.which("qemu-aarch64-static"),
    reason="no Python for 64-bit Arm (scripts/arm-python)",
)
def test_on_64_bit_arm_cpus_are_set_and_the_policy_is_asked_for_by_its_own_number() -> None:
    python = str(ARM_PYTHON / "usr/bin/python3")
    arm = ["qemu-aarch64-static", "-L", str(ARM_PYTHON), python, *FLAGS, BUILTIN]
    assert state_under(arm, f"--physcpubind={CPU_B}")["cpus"] == str(CPU_B)
    assert run(arm, f"--physcpubind={NOT_THERE}", "true").returncode == 1
    for policy, mode in (("preferred", 1), ("membind", 2), ("interleave", 3), ("preferred-many", 5)):
        traced = run([*arm[:1], "-strace", *arm[1:]], f"--{policy}={NODE}", "--", "/bin/true")
        # The emulator knows the call by its number; whether it hands it to the kernel depends on its version.
        (called,) = [line for line in traced.stderr.splitlines() if "set_mempolicy(" in line]
        assert f"set_mempolicy({mode}," in called
        unsupported = "errno=38" in called
        assert traced.returncode == (1 if unsupported else 0)
        assert ("setting " + policy in traced.stderr) == unsupported
