"""The wrapper script by itself: what it refuses, what it runs, and what it leaves in the environment."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from numa_launch.apply.backend import BUILTIN, Backend
from numa_launch.apply.spawn import WRAPPER
from numa_launch.apply.swap import WRAPPER_VARIABLES
from tests.apply.conftest import RUN_IT
from tests.host import CPU_B, needs_numactl, node_of

SHELLS = [[path] for name in ("dash", "bash", "busybox") if (path := shutil.which(name))]
SHELLS = [[*shell, "sh"] if shell[0].endswith("busybox") else shell for shell in SHELLS]
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getpid(), dict(os.environ)]))"


def run(
    shell: list[str], python: str | None, numactl: str | None, args: str | None, *command: str, builtin: str = ""
) -> "subprocess.CompletedProcess[str]":
    given = zip(WRAPPER_VARIABLES, (python, numactl, builtin, args), strict=True)
    environ = {**os.environ, **{name: value for name, value in given if value is not None}}
    return subprocess.run([*shell, WRAPPER, *command], env=environ, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
@pytest.mark.parametrize(
    ("python", "numactl", "args"),
    [
        (None, "/bin/true", "--membind=0"),
        ("", "/bin/true", "--membind=0"),
        ("/bin/echo", None, "--membind=0"),
        ("/bin/echo", "/bin/true", None),
        ("/bin/echo", "/bin/true", ""),
        ("/bin/echo", "/bin/true", "--membind"),
        ("/bin/echo", "/bin/true", "--membind="),
        ("/bin/echo", "/bin/true", "--membind=0;id"),
        ("/bin/echo", "/bin/true", "--membind=$(id)"),
        ("/bin/echo", "/bin/true", "--membind=*"),
        ("/bin/echo", "/bin/true", "--membind=0\n--membind=1"),
        ("/bin/echo", "/bin/true", "--physcpubind=all"),
        ("/bin/echo", "/bin/true", "--cpunodebind=0 --show"),
        ("/bin/echo", "/bin/true", "*"),
        ("/bin/echo", "/bin/true", "id"),
    ],
)
def test_what_is_missing_or_malformed_is_refused(
    shell: list[str], python: str | None, numactl: str | None, args: str | None
) -> None:
    done = run(shell, python, numactl, args, "-c", "pass")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("numa-launch: the wrapper ")
    assert "configure_subprocess" in done.stderr


@needs_numactl
@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_it_becomes_python_with_every_argument_and_without_its_variables(shell: list[str]) -> None:
    numactl = shutil.which("numactl")
    odd = ["a b", "", "*", "--", "$HOME", "'\"", "line\nbreak"]
    done = run(
        shell, sys.executable, numactl, f"--all --physcpubind={CPU_B} --preferred={node_of(CPU_B)}", "-c", SHOW, *odd
    )
    argv, _, environ = json.loads(done.stdout)
    assert argv == odd
    assert not any(name.startswith("NUMA_LAUNCH") for name in environ)


@needs_numactl
def test_pid_and_exit_status_pass_through() -> None:
    given = (sys.executable, str(shutil.which("numactl")), "", f"--physcpubind={CPU_B}")
    environ = {**os.environ, **dict(zip(WRAPPER_VARIABLES, given, strict=True))}
    program = "import os; print(os.getpid(), flush=True); os._exit(37)"
    child = subprocess.Popen([WRAPPER, "-c", program], env=environ, stdout=subprocess.PIPE, text=True)
    out, _ = child.communicate()
    assert int(out) == child.pid
    assert child.returncode == 37


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_numactl_that_is_gone_leaves_python_unbound_and_says_so(shell: list[str]) -> None:
    done = run(shell, "/bin/echo", "/nowhere/numactl", "--membind=0", "started")
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert done.stderr.splitlines() == [
        "numa-launch: /nowhere/numactl is gone, so this worker runs unbound: install it again"
    ]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_the_built_in_backend_is_run_as_it_was_probed(shell: list[str]) -> None:
    odd = ["a b", "", "*", "--", "$HOME", "'\""]
    builtin = Backend(sys.executable, BUILTIN)
    done = run(shell, "/bin/echo", "/bin/echo", "--all --membind=0", *odd, builtin=BUILTIN)
    assert done.stdout.split() == " ".join([*builtin.command[1:], "--all --membind=0 -- /bin/echo", *odd]).split()
    done = run(shell, sys.executable, sys.executable, f"--physcpubind={CPU_B}", "-c", SHOW, *odd, builtin=BUILTIN)
    argv, _, environ = json.loads(done.stdout)
    assert argv == odd
    assert not any(name.startswith("NUMA_LAUNCH") for name in environ)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_a_built_in_backend_that_is_gone_leaves_python_unbound_and_says_so(shell: list[str]) -> None:
    done = run(shell, "/bin/echo", sys.executable, "--membind=0", "started", builtin="/nowhere/builtin.py")
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert done.stderr.startswith("numa-launch: /nowhere/builtin.py is gone, so this worker runs unbound")


def test_a_python_path_with_blanks_is_one_path(tmp_path: Path) -> None:
    python = tmp_path / "a b/my python"
    python.parent.mkdir()
    python.symlink_to("/bin/echo")
    numactl = tmp_path / "c d/numactl"
    numactl.parent.mkdir()
    numactl.write_text(f"#!/bin/sh\n{RUN_IT}\n")
    numactl.chmod(0o755)
    assert run(["/bin/sh"], str(python), str(numactl), "--membind=0", "x y").stdout == "x y\n"
