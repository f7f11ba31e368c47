"""Memory policies refused by a real filter, as in a default Docker container; it needs neither root nor a guest."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from numa_launch.machine.limits import current_affinity
from tests.host import ALLOWED, CPU_B, needs_numactl, node_of
from tests.vm import seccomp
from tests.vm.conftest import NEW_NUMACTL

pytestmark = needs_numactl

NO_NUMACTL = Path("/nowhere")
"""Nothing else is on PATH, so the built-in backend binds."""
VERSIONS = {
    "installed": None,
    "builtin": NO_NUMACTL,
    "2.0.19": pytest.param(
        NEW_NUMACTL.parent, marks=pytest.mark.skipif(not NEW_NUMACTL.exists(), reason="not fetched")
    ),
}
SECCOMP = str(Path(seccomp.__file__))
PRINT_STATE = "import json; from tests.vm.truth import state; print(json.dumps(state()))"


def refused(*command: str, numactl: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a command under the filter, with another numactl first on PATH where one is given."""
    path = os.environ["PATH"] if numactl is None else f"{numactl}:{os.environ['PATH']}"
    if numactl == NO_NUMACTL:
        path = str(numactl)
    environ = {**os.environ, "PATH": path, "PYTHONPATH": os.getcwd()}
    return subprocess.run([sys.executable, SECCOMP, *command], env=environ, capture_output=True, text=True, timeout=60)


def state_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("numactl", [VERSIONS["installed"], VERSIONS["2.0.19"]], ids=["installed", "2.0.19"])
def test_the_filter_refuses_memory_policies(numactl: Path | None) -> None:
    assert refused("numactl", "--membind=0", "true", numactl=numactl).returncode == 1
    assert refused("numactl", f"--physcpubind={CPU_B}", "true", numactl=numactl).returncode == 0

    if numactl:
        assert refused("numactl", "--cpunodebind=0", "true", numactl=numactl).returncode == 1


@pytest.mark.parametrize("numactl", VERSIONS.values(), ids=list(VERSIONS))
@pytest.mark.parametrize(
    "args", [("--numa-cpus", str(CPU_B), "--rank=0"), (f"--numa-nodes={node_of(CPU_B)}", "--rank=0")]
)
def test_a_command_keeps_its_cpus_and_is_told(numactl: Path | None, args: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "numa_launch", *args, "--", sys.executable, "-c", PRINT_STATE]
    done = refused(*command, numactl=numactl)
    state = state_of(done)
    assert state["policy"] == "default"
    if "--numa-cpus" in args:
        assert state["cpus"] == str(CPU_B)
    *_, warned, bound = done.stderr.splitlines()
    assert "memory is not bound" in warned
    assert "SYS_NICE" in warned
    assert "memory " not in bound
    strict = refused(*command[:3], "--strict", *command[3:], numactl=numactl)
    assert strict.returncode == 1
    assert strict.stderr.startswith("Error: ")


@pytest.mark.parametrize("numactl", VERSIONS.values(), ids=list(VERSIONS))
def test_spawned_workers_keep_their_cpus(numactl: Path | None, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
import multiprocessing
from numa_launch import LaunchConfig, configure_subprocess
from tests.vm.truth import report
if __name__ == "__main__":
    for rank in range(2):
        with configure_subprocess(LaunchConfig(numa_bind_cpus=["{ALLOWED[0]}", "{CPU_B}"]), rank):
            process = multiprocessing.get_context("spawn").Process(target=report, args=("{tmp_path}/truth", {{}}))
            process.start()
        process.join()
""")
    done = refused(sys.executable, str(program), numactl=numactl)
    assert done.returncode == 0, done.stderr
    states = [json.loads(line)["state"] for line in (tmp_path / "truth").read_text().splitlines()]
    assert [(state["cpus"], state["policy"]) for state in states] == [
        (str(ALLOWED[0]), "default"),
        (str(CPU_B), "default"),
    ]
    assert "memory is not bound" in done.stderr


def test_the_current_process_says_what_it_could_not_reach() -> None:
    program = f"""
import json, os
from numa_launch import LaunchConfig, bind_current_process
done = bind_current_process(LaunchConfig(numa_bind_cpus=["{CPU_B}"]), 0)
print(json.dumps([sorted(os.sched_getaffinity(0)), done.not_reached]))
"""
    done = refused(sys.executable, "-c", program)
    assert json.loads(done.stdout) == [[CPU_B], ["memory policy: Operation not permitted"]], done.stderr


def test_this_process_itself_is_not_filtered() -> None:
    assert current_affinity() == frozenset(ALLOWED)
    assert subprocess.run(["numactl", f"--membind={node_of(CPU_B)}", "true"], capture_output=True).returncode == 0
