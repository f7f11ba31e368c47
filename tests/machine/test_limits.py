"""What a process may use: affinity, cpusets, memory nodes, policy, and what a launcher of ours handed over."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from numa_launch.machine import limits as module
from numa_launch.machine.handover import VARIABLE, Handover, parse_handover
from numa_launch.machine.limits import cpuset_places, read_cpuset, read_limits
from numa_launch.machine.model import Machine
from tests.lay import TWO_NODES, lay, put

Read = Callable[..., Machine]
ONLINE = frozenset(range(16))


def test_without_any_file_everything_online_is_allowed(read: Read) -> None:
    limits = read(TWO_NODES).limits
    assert (limits.affinity, limits.cpuset, limits.memory_nodes, limits.policy) == (ONLINE, None, None, "default")


@pytest.mark.parametrize("version_1", [False, True])
def test_a_cpuset_of_either_version(read: Read, version_1: bool) -> None:
    machine = read({**TWO_NODES, "cpuset": "2-11", "cpuset_mems": "0", "cgroup_v1": version_1})
    assert machine.limits.cpuset == frozenset(range(2, 12))
    assert machine.limits.memory_nodes == frozenset({0})
    assert machine.usable_cpus_of(1) == frozenset(range(8, 12))


@pytest.mark.parametrize(
    ("status", "affinity"),
    [
        ("Cpus_allowed_list:\t0-3", {0, 1, 2, 3}),
        ("Cpus_allowed:\t00000000,0000000f", {0, 1, 2, 3}),
        ("Name:\tpython", set(ONLINE)),
        ("Cpus_allowed_list:\t0-", None),
    ],
)
def test_affinity_of_a_capture(tmp_path: Path, status: str, affinity: set[int] | None) -> None:
    put(tmp_path / "proc/self/status", status)
    assert read_limits(str(tmp_path), ONLINE, {}).affinity == affinity


def test_a_status_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "proc/self/status").mkdir(parents=True)
    assert read_limits(str(tmp_path), ONLINE, {}).affinity is None


@pytest.mark.parametrize(
    "text",
    [
        "default",
        "bind:0",
        "bind=static:0-1",
        "bind=static|balancing:0",
        "prefer:3",
        "prefer (many):0-1",
        "interleave:0-1,3",
        "weighted interleave:0",
        "bind=0-3",
        "preferred_many:0",
        "local",
    ],
)
def test_every_policy_the_kernel_prints(tmp_path: Path, text: str) -> None:
    put(tmp_path / "proc/self/numa_maps", f"7f00 {text} file=/bin/sh mapped=1\n8000 interleave:1 heap")
    assert read_limits(str(tmp_path), ONLINE, {}).policy == text


@pytest.mark.parametrize("text", ["", "\n7f00 default", "7f00", "garbage", "7f00 12"])
def test_a_policy_that_cannot_be_made_out_is_unknown(tmp_path: Path, text: str) -> None:
    put(tmp_path / "proc/self/numa_maps", text)
    assert read_limits(str(tmp_path), ONLINE, {}).policy is None


@pytest.mark.parametrize(
    ("cgroups", "places"),
    [
        ("0::/pod", [("", "/pod"), ("/unified", "/pod")]),
        ("5:cpuset:/pod", [("/cpuset", "/pod")]),
        ("5:cpu,cpuset:/pod", [("/cpuset", "/pod"), ("/cpu,cpuset", "/pod")]),
        ("1:name=systemd:/x\n0::/a:b", [("", "/a:b"), ("/unified", "/a:b")]),
        ("0::/pod\n3:cpuset:/old", [("/cpuset", "/old"), ("", "/pod"), ("/unified", "/pod")]),
        ("garbage\n::\n5:cpu:/x", []),
    ],
)
def test_where_a_cpuset_may_be(cgroups: str, places: list[tuple[str, str]]) -> None:
    assert cpuset_places(cgroups) == places


@pytest.mark.parametrize(
    "path", ["/", "/kubepods/pod1/c1", "/../../other", "/a/b (deleted)", "/a/../../../../etc", "/../pod"]
)
def test_a_path_that_is_not_there_means_its_nearest_parent(tmp_path: Path, path: str) -> None:
    put(tmp_path / "proc/self/cgroup", f"0::{path}")
    put(tmp_path / "sys/fs/cgroup/cpuset.cpus.effective", "0-3")
    put(tmp_path / "etc/cpuset.cpus.effective", "9")
    put(tmp_path / "sys/fs/cgroup/pod/cpuset.cpus.effective", "9")
    assert read_cpuset(str(tmp_path), "cpus") == frozenset(range(4))


def test_the_nearest_cgroup_that_has_the_controller_counts(tmp_path: Path) -> None:
    put(tmp_path / "proc/self/cgroup", "0::/a/b/c")
    put(tmp_path / "sys/fs/cgroup/cpuset.cpus.effective", "0-15")
    put(tmp_path / "sys/fs/cgroup/a/cpuset.cpus.effective", "0-7")
    put(tmp_path / "sys/fs/cgroup/a/b/cpuset.cpus.effective", "")
    (tmp_path / "sys/fs/cgroup/a/b/c").mkdir(parents=True)
    assert read_cpuset(str(tmp_path), "cpus") == frozenset(range(8))


def test_handover_round_trips() -> None:
    handover = Handover(frozenset({1, 2}), "prefer (many):0-1", ONLINE, "default")
    assert parse_handover(str(handover)) == handover


@pytest.mark.parametrize("text", [None, "", "1", "a;b;c;d", "0;x;1", "0-;default;0;default", "0;d;0;d;e"])
def test_a_handover_that_is_not_ours_is_ignored(text: str | None) -> None:
    assert parse_handover(text) is None


@pytest.mark.parametrize(
    ("affinity", "policy", "is_ours"),
    [({8, 9}, "prefer:1", True), ({8}, "prefer:1", False), ({8, 9}, "default", False)],
)
def test_what_our_launcher_set_is_no_limit_while_it_is_exactly_that(
    monkeypatch: pytest.MonkeyPatch, affinity: set[int], policy: str, is_ours: bool
) -> None:
    monkeypatch.setattr(module, "read_policy", lambda root: policy)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: affinity)
    handover = Handover(frozenset({8, 9}), "prefer:1", ONLINE, "default")
    limits = read_limits("", ONLINE, {VARIABLE: str(handover)})
    assert limits.affinity == (ONLINE if is_ours else affinity)
    assert limits.policy == ("default" if is_ours else policy)
    assert limits.current_policy == policy


def test_a_capture_has_no_handover(tmp_path: Path) -> None:
    root = lay(tmp_path, {**TWO_NODES, "allowed_cpus": "8-9"})
    handover = Handover(frozenset({8, 9}), "default", ONLINE, "default")
    assert read_limits(str(root), ONLINE, {VARIABLE: str(handover)}).affinity == frozenset({8, 9})


def test_the_live_limits_are_the_kernels() -> None:
    limits = read_limits("", ONLINE, {})
    assert limits.affinity == frozenset(os.sched_getaffinity(0))
    assert limits.policy
    assert limits.memory_nodes


def test_a_live_affinity_that_cannot_be_read_is_taken_from_status(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = frozenset(os.sched_getaffinity(0))

    def refused(pid: int) -> set[int]:
        raise PermissionError

    monkeypatch.setattr(os, "sched_getaffinity", refused)
    assert read_limits("", ONLINE, {}).affinity == allowed
