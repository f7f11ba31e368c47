"""Which backend binds, and that workers and commands get the same from both."""

import json
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numa_launch import ConfigError, LaunchConfig, configure_subprocess
from numa_launch.apply.backend import BUILTIN, Backend, choose
from numa_launch.config import BackendChoice
from tests.host import ALL_ALLOWED, BOUND_TO_B, CPU_A, CPU_B, needs_memory_policy, needs_numactl
from tests.live import AS_ROOT, can_unshare
from tests.vm import truth

CONTEXT = multiprocessing.get_context("spawn")
LISTS = LaunchConfig(numa_bind_cpus=[str(CPU_A), str(CPU_B)])
TRUTH = str(Path(truth.__file__))
LAUNCH = ["-m", "numa_launch", "--backend=builtin", f"--numa-cpus={CPU_B}", "--rank=0"]


OURS, THEIRS = Backend(sys.executable, BUILTIN), Backend("/usr/bin/numactl")


@pytest.mark.parametrize(
    ("choice", "numactl", "chosen"),
    [
        ("auto", THEIRS.program, THEIRS),
        ("auto", None, OURS),
        ("numactl", THEIRS.program, THEIRS),
        ("numactl", None, None),
        ("builtin", THEIRS.program, OURS),
        ("builtin", None, OURS),
    ],
)
def test_auto_takes_numactl_where_there_is_one(
    choice: BackendChoice, numactl: str | None, chosen: Backend | None
) -> None:
    assert choose(choice, lambda: numactl, sys.executable) == chosen


@pytest.mark.parametrize("python", [None, "", "/nowhere/python"])
def test_a_program_without_a_python_needs_numactl(python: str | None) -> None:
    assert choose("auto", lambda: None, python) is None


@pytest.mark.parametrize("python", [os.fsencode(sys.executable), Path(sys.executable)])
def test_a_python_may_be_named_in_any_way(python: bytes | Path) -> None:
    assert choose("auto", lambda: None, python) == OURS


@pytest.mark.skipif(not can_unshare(), reason="no mount namespaces")
def test_a_python_without_ctypes_binds_cpus(tmp_path: Path) -> None:
    import _ctypes

    hidden = ["sh", "-c", 'mount --bind /dev/null "$0" && exec "$@"', str(_ctypes.__file__)]
    for command in (
        ["-m", "numa_launch", "doctor", "--numa-nodes=0"],
        [*LAUNCH, "--", "grep", "Cpus_allowed_list", "/proc/self/status"],
    ):
        done = subprocess.run([*AS_ROOT, *hidden, sys.executable, *command], capture_output=True, text=True, timeout=60)
        assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout.split() == ["Cpus_allowed_list:", str(CPU_B)]
    assert "this Python has no ctypes" in done.stderr


@pytest.mark.skipif(not shutil.which("setarch") or os.uname().machine != "x86_64", reason="no setarch")
@needs_memory_policy
def test_the_personality_of_32_bits_changes_nothing() -> None:
    done = subprocess.run(
        ["setarch", "i686", sys.executable, *LAUNCH, "--", sys.executable, "-S", TRUTH], capture_output=True, text=True
    )
    assert json.loads(done.stdout)["policy"] == BOUND_TO_B, done.stderr


def test_a_frozen_program_is_not_taken_for_a_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert choose("auto", lambda: None, sys.executable) is None


@pytest.mark.parametrize("make", [lambda: LaunchConfig(backend="none"), lambda: LaunchConfig(backend=None)])  # type: ignore[arg-type]
def test_an_unknown_backend_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"backend \(--backend\)"):
        make()
    with pytest.raises(ConfigError, match="backend"), configure_subprocess(LISTS, 0, backend="other"):  # type: ignore[arg-type]
        pass


def worker_state(path: Path, config: Any, **options: Any) -> dict[str, Any]:
    """Return what a spawned worker of rank 1 finds itself to be."""
    with configure_subprocess(config, 1, **options) as binding:
        process = CONTEXT.Process(target=truth.report, args=(str(path), {"bound": binding.bound}))
        process.start()
    process.join()
    assert process.exitcode == 0
    return dict(json.loads(path.read_text()))


@needs_memory_policy
@pytest.mark.parametrize(
    ("config", "options"),
    [
        (LISTS, {"backend": "builtin"}),
        (LaunchConfig(numa_bind_cpus=LISTS.numa_bind_cpus, backend="builtin"), {}),
        (SimpleNamespace(parallel_config=SimpleNamespace(numa_bind_cpus=LISTS.numa_bind_cpus, backend="nccl")), {}),
    ],
)
def test_a_spawned_worker_is_bound_without_numactl(
    config: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    seen = worker_state(tmp_path / "truth", config, **options)
    assert seen["bound"]
    assert (seen["state"]["cpus"], seen["state"]["policy"]) == (str(CPU_B), BOUND_TO_B)
    assert seen["state"]["variables"] == []
    assert truth.state()["cpus"] == ALL_ALLOWED
    assert not any(name.startswith("NUMA_LAUNCH") for name in os.environ)


@needs_numactl
def test_workers_get_the_same_from_both(tmp_path: Path) -> None:
    ours, theirs = (
        worker_state(tmp_path / backend, LISTS, backend=backend)["state"] for backend in ("builtin", "numactl")
    )
    assert ours == theirs


def run(*args: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "numa_launch", "--numa-cpus", str(CPU_B), "--rank=0", *args]
    command += ["--", sys.executable, "-S", TRUTH]
    return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60)


@needs_memory_policy
@pytest.mark.parametrize(
    ("args", "environ"),
    [(["--backend", "builtin"], {}), ([], {"NUMA_LAUNCH_BACKEND": "builtin"}), ([], {"PATH": "/nowhere"})],
)
def test_a_command_is_bound_by_the_built_in_backend(args: list[str], environ: dict[str, str]) -> None:
    done = run(*args, **environ)
    state = json.loads(done.stdout)
    assert (state["cpus"], state["policy"]) == (str(CPU_B), BOUND_TO_B)
    (line,) = done.stderr.splitlines()
    assert f"built-in backend --physcpubind={CPU_B} --membind=" in line


@pytest.mark.skipif(CPU_A == CPU_B, reason="one CPU")
def test_inside_a_launcher_of_ours_it_goes_where_that_came_from_and_else_stays(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
import json, sys
from pathlib import Path
from numa_launch import LaunchConfig
from tests.apply.test_backend import worker_state
if __name__ == "__main__":
    config = LaunchConfig(numa_bind_cpus=["{CPU_A}", "{CPU_A}"], backend="builtin")
    print(json.dumps(worker_state(Path(sys.argv[1]), config)))
""")
    ours = [sys.executable, "-m", "numa_launch", "--backend", "builtin", "--numa-cpus", str(CPU_B), "--rank=0", "--"]
    got = []
    for name, around in (("ours", ours), ("theirs", ["taskset", "-c", str(CPU_B)])):
        command = [*around, sys.executable, str(program), str(tmp_path / name)]
        environ = {**os.environ, "PYTHONPATH": os.getcwd()}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
        seen = json.loads(done.stdout)
        got.append((seen["bound"], seen["state"]["cpus"]))
    assert got == [(True, str(CPU_A)), (False, str(CPU_B))]


def test_what_the_built_in_backend_refuses_is_dropped_and_said_in_its_words(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "builtin.py"
    text = Path(BUILTIN).read_text().replace('"set_mempolicy": 23', '"another_call": 23')
    assert text != Path(BUILTIN).read_text()
    broken.write_text(text)
    monkeypatch.setattr("numa_launch.apply.backend.BUILTIN", str(broken))
    caplog.set_level(logging.WARNING)
    seen = worker_state(tmp_path / "truth", LISTS, backend="builtin")
    assert (seen["state"]["cpus"], seen["state"]["policy"]) == (str(CPU_B), "default")
    assert "built-in backend" in caplog.text
    assert "setting membind: the system call's number is not known" in caplog.text
