"""doctor: on laid machines each limit is named, and no other, with a fix that helps; on this one its tries are real."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from numa_launch.apply.probe import Prober
from numa_launch.apply.spawn import WRAPPER
from numa_launch.cli import status_of
from numa_launch.doctor import tries
from numa_launch.doctor.examine import CHECK_OF_CODE, LIVE
from numa_launch.machine.read import read_machine
from numa_launch.reasons import SENTENCES, SKIP, WARNINGS
from tests.apply.conftest import RUN_IT
from tests.host import CPU_A, CPU_B, needs_numactl, node_of
from tests.lay import FOUR_GPUS, TWO_NODES, Description, address, lay
from tests.live import AS_ROOT, can_unshare
from tests.machine.test_captures import cases, unpack
from tests.stubs.build import compile_library
from tests.vm import seccomp

READ = ("switched-on", "nodes", "gpus", "affinity", "cpuset", "inherited-policy", "plan")


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    status = status_of(["doctor", "--json", *args])
    return status, json.loads(capsys.readouterr().out)


def trouble(found: dict[str, Any]) -> dict[str, str]:
    """Return the checks that found trouble, and their status."""
    return {check["name"]: check["status"] for check in found["checks"] if check["status"] in ("fail", "warning")}


ODD_NODE: Description = {
    "nodes": {**TWO_NODES["nodes"], "2": {"cpus": "", "mem_mb": 256}},
    "gpus": [{"node": 0}, {"node": 1}, {"node": 2}],
}
LIMITS: dict[str, tuple[Description, list[str], str, str, list[str]]] = {
    "taskset": ({**FOUR_GPUS, "allowed_cpus": "0-3,8-11"}, [], "affinity", "affinity-constrained", ["--bind"]),
    "policy": ({**FOUR_GPUS, "policy": "bind:0"}, [], "inherited-policy", "mempolicy-set", ["--bind"]),
    "cpuset": ({**FOUR_GPUS, "cpuset": "0-7"}, [], "cpuset", "cpus-not-allowed", ["--numa-nodes=0,0,0,0"]),
    "taskset, explicit": (
        {**FOUR_GPUS, "cpuset": "0-11", "allowed_cpus": "0-3"},
        ["--bind"],
        "affinity",
        "cpus-not-allowed",
        ["--numa-nodes=0,0,0,0"],
    ),
    "memory-only": (ODD_NODE, [], "gpus", "node-without-cpus", ["--bind"]),
    "unknown": (
        {**TWO_NODES, "gpus": [{"node": -1}]},
        [],
        "gpus",
        "gpu-node-unknown",
        ["--numa-nodes=0"],
    ),
    "no GPU": (TWO_NODES, [], "gpus", "no-gpu", ["--numa-nodes=0,1"]),
    "no GPU, explicit": (TWO_NODES, ["--bind"], "gpus", "no-gpu", ["--map=rank", "--nproc=2"]),
    "one node": ({"nodes": {"0": {"cpus": "0-7"}}, "gpus": [{"node": 0}]}, [], "nodes", "single-node", ["--bind"]),
    "off": (FOUR_GPUS, ["--no-bind"], "switched-on", "disabled", []),
    "executor": (FOUR_GPUS, ["--executor=ray"], "plan", "executor", ["--executor=ray", "--bind"]),
    "too many, explicit": (FOUR_GPUS, ["--bind", "--tp=8"], "plan", "gpu-index-out-of-range", ["--bind", "--tp=4"]),
    "strict": (
        {**FOUR_GPUS, "cpuset": "0-7"},
        ["--bind", "--strict"],
        "cpuset",
        "cpus-not-allowed",
        ["--numa-nodes=0,0,0,0"],
    ),
    "too many": (FOUR_GPUS, ["--tp=8"], "plan", "gpu-index-out-of-range", ["--tp=4"]),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_each_limit_is_named_and_no_other_and_its_fix_helps(
    limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, args, name, code, fixed = LIMITS[limit]
    root = f"--root={lay(tmp_path, machine)}"
    status, found = printed(capsys, root, *args)
    assert (status, found["would_bind"], trouble(found)) == (1, False, {name: "fail"})
    (named,) = [check for check in found["checks"] if check["name"] == name]
    assert named["code"] == code
    assert named["message"] in found["verdict"]
    assert found["fix"] == named["fix"] != ""
    changed = [option.partition("=")[0] for option in fixed if option not in args]
    assert not changed or any(option in named["fix"] for option in changed)
    status, found = printed(capsys, root, *fixed)
    assert (status, found["can_bind"], found["would_bind"], found["fix"]) == (0, True, True, None)
    assert trouble(found) == {}


@pytest.mark.parametrize(
    ("machine", "name", "says"),
    [
        ({**FOUR_GPUS, "cpuset": "0-15", "cpuset_mems": "0"}, "cpuset", "memory"),
        ({"nodes": {"0": {"cpus": "0-7"}, "1": {"cpus": "7-15"}}, "gpus": [{"node": 0}]}, "nodes", "several nodes"),
        (
            {
                **TWO_NODES,
                "gpus": [{"node": 0, "nvml_cpus": "8-15"}],
            },
            "gpus",
            "nvml-cpus says node 1",
        ),
    ],
)
def test_what_binds_less_or_may_be_wrong_is_a_warning(
    machine: Description, name: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = printed(capsys, f"--root={lay(tmp_path, machine)}")
    assert (status, trouble(found)) == (0, {name: "warning"})
    (named,) = [check for check in found["checks"] if check["name"] == name]
    assert says in named["message"]


def test_a_confining_cpuset_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = printed(capsys, f"--root={lay(tmp_path, {**FOUR_GPUS, 'cpuset': '2-9'})}")
    assert (status, trouble(found)) == (0, {})
    (cpuset,) = [check for check in found["checks"] if check["name"] == "cpuset"]
    assert (cpuset["status"], "2-9" in cpuset["message"]) == ("note", True)


def test_names_and_shape_of_the_json_are_stable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = printed(capsys, f"--root={lay(tmp_path, FOUR_GPUS)}")
    assert list(found) == [
        *("schema", "mode", "can_bind", "would_bind", "verdict", "fix", "skip_reason", "checks", "gpus"),
    ]
    assert [check["name"] for check in found["checks"]] == [
        *("switched-on", "nodes", "gpus", "affinity", "cpuset", "inherited-policy", "plan"),
        *("backend", "policy-set", "policy-read", "preferred-many", "start-method", "wrapper", "ld-preload"),
        *("numa-balancing", "zone-reclaim"),
    ]
    assert all(list(check) == ["name", "status", "code", "message", "fix"] for check in found["checks"])
    assert found["gpus"][3] == {
        **{"index": 3, "bdf": address(3, FOUR_GPUS["gpus"][3]), "uuid": None, "node": 1, "source": "pci-node"},
        "claims": [{"source": source, "node": 1} for source in ("pci-node", "pci-cpus")],
    }


@pytest.mark.parametrize("file", cases("gputree__*"), ids=lambda path: path.stem)
def test_on_a_capture_what_only_trying_shows_is_not_checked(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = unpack(file, tmp_path)
    status, found = printed(capsys, f"--root={capture}")
    assert all((check["status"] == "not checked") == (check["name"] in LIVE) for check in found["checks"])
    assert status_of(["--dry-run", "--json", f"--root={capture}"]) == 0
    assert json.loads(capsys.readouterr().out)["bound"] is (status == 0)


def test_every_code_that_a_plan_may_have_belongs_to_a_check() -> None:
    not_of_a_plan = {"probe-failed", "cpus-not-allowed"}
    assert CHECK_OF_CODE.keys() <= SENTENCES.keys()
    assert SKIP.keys() - not_of_a_plan <= CHECK_OF_CODE.keys()
    own = {"nothing-started", "worker-not-started", "blocks-overlap", "fork-server", "binding-dropped"}
    own |= {"wrapper-not-executable", "rank-ldom-mismatch", "srun-memory-dropped", "login-node"}
    assert WARNINGS.keys() - own - {"bind-unreadable"} <= CHECK_OF_CODE.keys()
    assert {*CHECK_OF_CODE.values()} <= {*READ, *LIVE}


def test_what_no_reason_has_a_code_for_is_the_plan_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = printed(capsys, f"--root={lay(tmp_path, FOUR_GPUS)}", "--numa-nodes=0,7,0,0")
    assert (status, trouble(found)) == (1, {"plan": "fail"})
    assert "node 7 does not exist" in found["verdict"]


def test_misuse_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["--no-such"], ["--root=/nowhere"], ["--tp=0"], ["--", "x"], ["extra"], ["--nproc=3", "--tp=2"]):
        assert status_of(["doctor", *args]) == 2
        assert capsys.readouterr().err.startswith("Error: ")


# --- On this host: what is tried is real

EXPLICIT = f"--numa-nodes={node_of(CPU_B)}"


def doctor(*args: str, around: list[str] | None = None, **environ: str) -> tuple[int, dict[str, Any]]:
    command = [*(around or []), sys.executable, "-m", "numa_launch", "doctor", "--json", *args]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def check_named(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(check for check in found["checks"] if check["name"] == name)


@needs_numactl
@pytest.mark.parametrize("args", [[], ["--backend=builtin"], ["--strict"]], ids=str)
def test_nothing_is_wrong_where_nothing_is_wrong(args: list[str]) -> None:
    status, found = doctor(EXPLICIT, *args)
    assert (status, trouble(found), found["fix"]) == (0, {}, None)
    assert not [check for check in found["checks"] if check["status"] == "not checked"]


@needs_numactl
@pytest.mark.parametrize("args", [[], ["--backend=builtin"]], ids=str)
def test_a_seccomp_filter_is_told_from_everything_else(args: list[str]) -> None:
    under = [sys.executable, str(Path(seccomp.__file__))]
    status, found = doctor(EXPLICIT, *args, around=under)
    assert (status, trouble(found)) == (0, {"policy-set": "warning"})
    assert "seccomp" in found["verdict"]
    assert all(word in found["fix"] for word in ("Docker", "Kubernetes", "Slurm"))
    assert doctor(EXPLICIT, *args, "--strict", around=under)[0] == 1
    status, found = doctor(EXPLICIT, *args, "--memory=none", around=under)
    assert (status, trouble(found)) == (0, {})


def test_numactl_that_is_missing_is_named() -> None:
    status, found = doctor(EXPLICIT, "--backend=numactl", PATH="/nowhere")
    assert (status, trouble(found)["backend"]) == (1, "fail")
    assert "install the package numactl" in found["fix"]
    status, found = doctor(EXPLICIT, "--memory=none", PATH="/nowhere")
    assert (status, trouble(found)) == (0, {})
    backend = check_named(found, "backend")
    assert (backend["status"], "numactl is not on PATH" in backend["message"]) == ("note", True)


@pytest.mark.parametrize(
    ("script", "status", "says"),
    [
        ("exit 3", "fail", "exit status 3"),
        (f'case "$1" in --cpunodebind*) echo "setting: Bad" >&2; exit 1;; esac\n{RUN_IT}', "warning", "setting: Bad"),
    ],
)
def test_a_broken_numactl_is_named_in_its_own_words(script: str, status: str, says: str, tmp_path: Path) -> None:
    numactl = tmp_path / "numactl"
    numactl.write_text(f"#!/bin/sh\n{script}\n")
    numactl.chmod(0o755)
    ended, found = doctor(EXPLICIT, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (ended, trouble(found)["backend"]) == (1 if status == "fail" else 0, status)
    backend = check_named(found, "backend")
    assert says in backend["message"]
    assert "--backend builtin" in backend["fix"]
    assert trouble(doctor(EXPLICIT, "--backend=builtin", PATH=f"{tmp_path}:{os.environ['PATH']}")[1]) == {}


def test_refused_affinities_are_named_with_a_fix(tmp_path: Path) -> None:
    filtering = Path(seccomp.__file__).read_text().replace('"x86_64": (237, 238, 239)', '"x86_64": (203,)')
    filtering = filtering.replace('"aarch64": (235, 236, 237)', '"aarch64": (122,)')
    (tmp_path / "filter.py").write_text(filtering)
    for backend in ("numactl", "builtin"):
        around = [sys.executable, str(tmp_path / "filter.py")]
        status, found = doctor(EXPLICIT, f"--backend={backend}", "--memory=none", around=around)
        assert (status, trouble(found)) == (1, {"backend": "fail"})
        assert "allow sched_setaffinity" in found["fix"]
        assert found["verdict"].startswith("nothing would be bound")


@needs_numactl
def test_strict_fails_for_what_the_plan_needs_only() -> None:
    under = [sys.executable, str(Path(seccomp.__file__))]
    assert doctor(EXPLICIT, "--strict", "--memory=none", around=under)[0] == 0
    assert doctor(EXPLICIT, "--strict", around=under)[0] == 1


@pytest.mark.skipif(not can_unshare(), reason="no mount namespaces")
def test_a_wrapper_on_a_noexec_mount_is_named() -> None:
    place = os.path.dirname(WRAPPER)
    remount = 'mount --bind "$0" "$0" && mount -o remount,bind,noexec "$0" && exec "$@"'
    status, found = doctor(EXPLICIT, around=[*AS_ROOT, "sh", "-c", remount, place])
    assert (status, trouble(found)) == (1, {"wrapper": "fail"})
    assert "noexec" in found["fix"]


KILL_SHELLS = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
__attribute__((constructor)) static void end(void) { if (!strcmp(program_invocation_short_name, "sh")) abort(); }
"""


@needs_numactl
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_preloaded_library_is_tried(tmp_path: Path) -> None:
    status, found = doctor(EXPLICIT, LD_PRELOAD="/nowhere/lib.so")
    assert (status, trouble(found)) == (0, {})
    assert check_named(found, "ld-preload")["status"] == "note"
    kills = compile_library(tmp_path, "kills.so", KILL_SHELLS) / "kills.so"
    status, found = doctor(EXPLICIT, LD_PRELOAD=str(kills))
    assert (status, trouble(found)) == (1, {"ld-preload": "fail"})
    assert "inside the worker" in found["fix"]


def test_the_screen_says_what_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["doctor", f"--root={lay(tmp_path, LIMITS['taskset'][0])}"]) == 1
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 24
    assert "can be bound here: yes; will be, so asked: no" in out
    assert (
        out.splitlines()[-1]
        == "to do: start it without that (mpirun --bind-to none), or pass --bind to bind within them"
    )


# --- Why a memory policy is refused

DOCKER = "Seccomp:\t2\nCapEff:\t00000000a80425fb\n"
PRIVILEGED = "Seccomp:\t2\nCapEff:\t000001ffffffffff\n"


@pytest.mark.parametrize(
    ("error", "status", "says", "fix"),
    [
        (errno.EPERM, DOCKER, "without the capability SYS_NICE", "--cap-add SYS_NICE"),
        (errno.EPERM, PRIVILEGED, "though the capability SYS_NICE is there", "--security-opt seccomp="),
        (errno.EPERM, "Seccomp:\t0\nCapEff:\t0\n", "sandbox or security module", "--memory none"),
        (errno.EPERM, PRIVILEGED.replace("2", "0", 1), "sandbox or security module", "allow it there"),
        (errno.EPERM, None, "sandbox or security module", "--memory none"),
        (errno.EPERM, "Seccomp:\t2\n", "without the capability", "--cap-add"),
        (errno.EINVAL, DOCKER, "cpuset", "--cpuset-mems"),
        (errno.ENOSYS, DOCKER, "no memory policies", "--memory none"),
    ],
)
def test_seccomp_capability_and_cpuset_are_told_apart(error: int, status: str | None, says: str, fix: str) -> None:
    why, to_do = tries.why_refused(error, tries.confinement(status))
    assert says in why
    assert fix in to_do


def test_an_unknown_machine_is_not_taken_for_one_without_memory_policies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("numa_launch.apply.builtin.NUMBERS", {})
    machine = read_machine(lay(tmp_path, FOUR_GPUS), environ={})
    assert tries.policy_set(machine, wanted=True).status == tries.policy_read().status == "not checked"
    assert tries.preferred_many(Prober(), machine, None, tries.policy_read(), wanted=True).message.endswith(
        "there is no backend"
    )


def test_a_call_is_tried_in_a_child() -> None:
    def refused() -> None:
        raise OSError(errno.EINVAL, "no")

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as daemons have it, whose children nobody need wait for
    try:
        assert tries.error_in_child(refused) == errno.EINVAL
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = os.sched_getaffinity(0)
    assert tries.error_in_child(lambda: os.sched_setaffinity(0, {CPU_A})) == 0
    assert os.sched_getaffinity(0) == before
    assert tries.error_in_child(refused) == errno.EINVAL
    assert tries.error_in_child(lambda: os.kill(os.getpid(), signal.SIGSYS)) == errno.EPERM
