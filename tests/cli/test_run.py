"""``numa-launch -- COMMAND`` as a program: it becomes COMMAND, passes everything through, and hands over."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from numa_launch import __version__
from numa_launch.machine.handover import VARIABLE
from tests.host import ALLOWED, CPU_B, needs_numactl, node_of

NUMA_LAUNCH = str(Path(sysconfig.get_path("scripts")) / "numa-launch")
ROOT = Path(__file__).parents[2]
CPU = CPU_B
BIND = ["--numa-cpus", str(CPU), "--rank", "0"]
PYTHON_STATE = "import json, os; print(json.dumps([os.getpid(), sorted(os.sched_getaffinity(0)), dict(os.environ)]))"


def run(*args: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, **options.pop("env", {})}
    return subprocess.run([NUMA_LAUNCH, *args], capture_output=True, text=True, timeout=60, env=environ, **options)


def error_of(done: "subprocess.CompletedProcess[str]", status: int) -> str:
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1 or lines[1].startswith("Usage: ")
    return lines[0]


@needs_numactl
@pytest.mark.parametrize("bind", [BIND, []])
def test_it_becomes_the_command(bind: list[str]) -> None:
    child = subprocess.Popen(
        [NUMA_LAUNCH, *bind, "--", sys.executable, "-c", PYTHON_STATE], stdout=subprocess.PIPE, text=True
    )
    pid, cpus, environ = json.loads(child.communicate(timeout=60)[0])
    assert pid == child.pid
    assert cpus == ([CPU] if bind else ALLOWED)
    assert not any(name.startswith("NUMA_LAUNCH_WRAP") for name in environ)
    assert (VARIABLE in environ) == bool(bind)


@needs_numactl
@pytest.mark.parametrize("bind", [BIND, ["--no-bind"]])
@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 37", 37), ("kill -TERM $$", -signal.SIGTERM)])
def test_exit_status_and_signals_are_the_commands(bind: list[str], script: str, status: int) -> None:
    assert run(*bind, "--", "sh", "-c", script).returncode == status


@needs_numactl
@pytest.mark.parametrize("bind", [BIND, ["--no-bind"]])
def test_stdin_stdout_and_arguments_pass_through(bind: list[str]) -> None:
    odd = ["a b", "", "--", "*", "--dry-run", "topo", "'"]
    program = "import sys; sys.stdout.write(repr(sys.argv[1:]) + sys.stdin.read())"
    done = run(*bind, "--", sys.executable, "-c", program, *odd, input="in\n")
    assert done.stdout == f"{odd!r}in\n"


@pytest.mark.parametrize("bind", [BIND, ["--no-bind"]])
def test_sigpipe_is_as_a_shell_would_start_it(bind: list[str]) -> None:
    done = run(*bind, "--", "/bin/sh", "-c", f"exec {shutil.which('grep')} SigIgn /proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored & 1 << (signal.SIGPIPE - 1)
    assert not ignored & 1 << (signal.SIGXFSZ - 1)


def test_the_word_behind_the_dashes_is_always_the_command(tmp_path: Path) -> None:
    topo = tmp_path / "topo"
    topo.write_text("#!/bin/sh\necho mine\n")
    topo.chmod(0o755)
    assert run("--no-bind", "--", "topo", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}).stdout == "mine\n"


def test_a_script_without_a_first_line_runs_as_in_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo $1\n")
    script.chmod(0o755)
    for bind in (["--no-bind"], BIND):
        assert run(*bind, "--", str(script), "here").stdout == "here\n"


def test_why_nothing_is_bound_is_one_line_on_stderr() -> None:
    done = run("--no-bind", "--", "true")
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("numa-launch: staying unbound (disabled): ")


@needs_numactl
def test_what_is_bound_is_one_line_on_stderr() -> None:
    (line,) = run(*BIND, "--", "true").stderr.splitlines()
    assert line == (
        f"numa-launch: worker 0: node {node_of(CPU)}, CPUs {CPU}, memory membind {node_of(CPU)}: "
        f"numactl --physcpubind={CPU} --membind={node_of(CPU)}"
    )


@needs_numactl
def test_verbose_shows_what_was_tried() -> None:
    assert "numa-launch: tried " in run("-v", *BIND, "--", "true").stderr


@needs_numactl
def test_without_a_rank_it_says_what_the_command_is_taken_for() -> None:
    assert (
        "EngineCore over all visible GPUs, as there is no rank: " in run("--numa-cpus", str(CPU), "--", "true").stderr
    )


def test_scripts_run_stays_in_the_callers_directory(tmp_path: Path) -> None:
    done = subprocess.run([ROOT / "scripts/run", "-q", "--", "pwd"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path)


@pytest.mark.parametrize("bind", [BIND, ["--no-bind"]])
def test_quiet(bind: list[str]) -> None:
    assert run("-q", *bind, "--", "true").stderr == ""


@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        ([], 2, "COMMAND is missing"),
        (["--"], 2, "COMMAND is missing"),
        (["--no-bind"], 2, "COMMAND is missing"),
        (["--", "no-such-command"], 127, "no-such-command: command not found"),
        (["--", "/etc/passwd"], 126, "/etc/passwd"),
        (["--", "/etc"], 126, "directory"),
        (["--", ""], 127, "not found"),
        (["--numa-cpus", "0", "--rank", "0", "--", "no-such-command"], 127, "command not found"),
        (["python", "x.py"], 2, "numa-launch -- python x.py"),
        (["--tp", "2", "python", "x.py"], 2, "numa-launch --tp 2 -- python x.py"),
        (["--no-such-option", "--", "true"], 2, "--no-such-option"),
        (["--json", "--", "true"], 2, "--dry-run"),
        (["--root", "/", "--", "true"], 2, "--dry-run"),
        (["--nproc", "2"], 2, "COMMAND"),
        (["--kind", "worker", "--", "true"], 2, "--rank"),
        (["--bind", "--", "true"], 2, "--numa-nodes"),
        (["--numa-nodes", "4095", "--", "true"], 2, "node 4095 does not exist; the nodes with CPUs are 0"),
        (["--numa-nodes", "0", "--rank", "3", "--", "true"], 2, "has 1 entries"),
        (["--numa-cpus", "abc", "--", "true"], 2, "'abc'"),
        (["--no-bind", "--numa-nodes", "0", "--", "true"], 2, "contradicts"),
        (["--numa-cpus", "60000", "--rank", "0", "--strict", "--", "true"], 1, "60000"),
        (["--executor", "x", "--", "true"], 2, "--executor"),
    ],
)
def test_bad_input_is_one_sentence_with_the_right_status(args: list[str], status: int, text: str) -> None:
    done = run(*args)
    assert text in error_of(done, status)
    assert done.stdout == ""


OF_TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "NUMA_LAUNCH_BIND": "0"}


@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        (["echo", "--", "-n", "--tp"], 0, "-- -n --tp\n"),
        (["--tp", "2", "--", "echo", "a", "--"], 0, "a --\n"),
        (["--", "echo", "a"], 0, "a\n"),
        (["topo"], 0, "node"),
        (["--tp", "2", "echo"], 2, "numa-launch --tp 2 -- echo"),
        (["--dry-run", "echo"], 2, "numa-launch --dry-run -- echo"),
        (["no-such-command"], 127, "no-such-command: command not found"),
        ([], 2, "COMMAND is missing"),
    ],
)
def test_dashes_that_a_launcher_dropped_are_not_missed(args: list[str], status: int, text: str) -> None:
    """argparse, and so torchrun, accelerate and deepspeed, drop a ``--`` right behind the program's name."""
    done = run(*args, env=OF_TORCHRUN)
    assert text in (error_of(done, status) if status else done.stdout)


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_dashes_that_nobody_dropped_are_missed(missing: str) -> None:
    environ = {name: value for name, value in OF_TORCHRUN.items() if name != missing}
    assert "put one more before numa-launch" in error_of(run("echo", env=environ), 2)
    assert "one more" not in error_of(run("--tp", "2", "echo", env=environ), 2)


@pytest.mark.parametrize("bind", [BIND, ["--no-bind"]])
def test_a_script_whose_interpreter_is_missing(tmp_path: Path, bind: list[str]) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nowhere/interpreter -x\n")
    script.chmod(0o755)
    assert "/nowhere/interpreter" in error_of(run(*bind, "--", str(script)), 127)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("bind", ["--no-bind", *([" ".join(BIND)] if shutil.which("numactl") else [])])
def test_closed_descriptors(tmp_path: Path, bind: str, closed: str) -> None:
    line = f"{shlex.quote(NUMA_LAUNCH)} {bind} -- touch {shlex.quote(str(tmp_path))}/ran {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert (tmp_path / "ran").exists(), done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_without_stdout_is_no_traceback() -> None:
    done = subprocess.run(["sh", "-c", f"{shlex.quote(NUMA_LAUNCH)} --dry-run >&-"], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_the_environment_is_the_callers_but_for_what_is_handed_over() -> None:
    for locale in ("LANG", "LC_CTYPE"):
        check_environment({"PATH": os.environ["PATH"], locale: "C"})


def check_environment(environ: dict[str, str]) -> None:
    for bind, added in ((["--no-bind"], set()), (BIND, {VARIABLE})):
        # Where the path of .venv has a blank, its scripts start by way of sh, which adds PWD.
        command = [NUMA_LAUNCH, *bind, "--", "env"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        got = dict(line.split("=", 1) for line in done.stdout.splitlines())
        assert got.keys() - {"_", "PWD"} == environ.keys() | added
        assert environ.items() <= got.items()


def test_explicit_without_numactl_names_the_package(tmp_path: Path) -> None:
    (tmp_path / "true").symlink_to("/bin/true")
    environ = {"PATH": str(tmp_path), "NUMA_LAUNCH_BACKEND": "numactl"}
    assert "apt-get install numactl" in error_of(run(*BIND, "--", "true", env=environ), 2)
    assert run("--", "true", env=environ).returncode == 0
    dry = run(*BIND, "--dry-run", "--json", env=environ)
    assert [warning["code"] for warning in json.loads(dry.stdout)["warnings"]] == ["numactl-missing"]


def fake(tmp_path: Path, script: str) -> dict[str, str]:
    numactl = tmp_path / "numactl"
    numactl.write_text(f"#!/bin/sh\n{script}\n")
    numactl.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_a_numactl_that_refuses_everything_leaves_the_command_running(tmp_path: Path) -> None:
    environ = fake(tmp_path, "echo 'numactl: This system does not support NUMA policy' >&2; exit 1")
    done = run(*BIND, "--", "echo", "started", env=environ)
    assert (done.returncode, done.stdout) == (0, "started\n")
    (line,) = done.stderr.splitlines()
    assert "does not support NUMA policy" in line
    assert "SYS_NICE" in line
    assert "not support NUMA policy" in error_of(run(*BIND, "--strict", "--", "echo", "started", env=environ), 1)


@needs_numactl
def test_the_library_inside_plans_from_what_was_allowed_before() -> None:
    """``numa-launch -- python scripts/workers.py`` still binds every worker, at any depth."""
    inner = [sys.executable, str(ROOT / "scripts/workers.py"), "--cpus", "--workers", "2"]
    for outer in (["--numa-nodes", "0"], BIND):
        nested = [*outer, "--", NUMA_LAUNCH, *outer, "--", *inner]
        for line in (["--no-bind", "--", *inner], [*outer, "--", *inner], nested):
            done = run(*line)
            assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    cpus = [line.split("CPUs ")[1].split(",")[0] for line in lines]
    if len(ALLOWED) > 1 and outer == ["--numa-nodes", "0"]:
        assert cpus == [str(ALLOWED[0]), str(ALLOWED[1])]
    assert all("policy bind:" in line for line in lines)


@needs_numactl
def test_python_m_numa_launch() -> None:
    done = subprocess.run([sys.executable, "-m", "numa_launch", "--version"], capture_output=True, text=True)
    assert done.stdout == f"numa-launch, version {__version__}\n"


def test_help_has_examples_and_every_option_but_nothing_of_later() -> None:
    text = run("--help").stdout
    for word in ("Examples:", "--numa-nodes", "--map", "topo", "capture", "doctor", "srun", "NUMA_LAUNCH_BIND"):
        assert word in text
    for later in ("inspect", "bench"):
        assert later not in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell: str) -> None:
    assert "numa-launch" in run(env={"_NUMA_LAUNCH_COMPLETE": f"{shell}_source"}).stdout


def test_a_reader_that_stops_early_is_no_error() -> None:
    script = f"{shlex.quote(NUMA_LAUNCH)} topo --json | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stderr == ""


def test_output_that_cannot_be_written_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([NUMA_LAUNCH, "topo"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupted_while_probing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    environ = fake(tmp_path, f"echo $$ >{tmp_path}/started; exec sleep 600")
    child = subprocess.Popen(
        [NUMA_LAUNCH, *BIND, "--", "true"],
        env={**os.environ, **environ},
        stderr=subprocess.PIPE,
        text=True,
    )
    numactl = int((tmp_path / "started").read_text())
    child.send_signal(signal.SIGINT)
    assert "Traceback" not in child.communicate(timeout=30)[1]
    assert child.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(numactl, 0)
