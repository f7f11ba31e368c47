"""What real kernels with many nodes show of every process, held against what the plan printed.

One generic check runs over everything that was started in every scenario; a table says what else each must show.
"""

import re
from typing import Any

import pytest

from numa_launch.apply import builtin
from numa_launch.idsets import format_ids, parse_ids
from tests.doctor.test_examine import trouble
from tests.vm.conftest import GUESTS, scenario

pytestmark = pytest.mark.guest

NOT_PLANNED = (
    *("threads", "copies", "killed", "accepted", "spread", "pool"),
    *("capture", "capture-cpuset", "doctor", "doctor-limits"),
)
PLANNED = [(guest, name) for guest, spec in GUESTS.items() for name in spec.scenarios if name not in NOT_PLANNED]
NO_MEMORY_POLICY = ("seccomp", "seccomp-auto", "seccomp-new", "seccomp-builtin")
POLICIES = {
    "--membind": "bind",
    "--preferred": "prefer",
    "--preferred-many": "prefer (many)",
    "--interleave": "interleave",
}


def policy_of(process: dict[str, Any], otherwise: str) -> str:
    """Return the policy that a planned process's arguments leave, as numa_maps shows it."""
    for argument in process["numactl_args"]:
        option, _, nodes = argument.partition("=")
        if option in POLICIES:
            return f"{POLICIES[option]}:{format_ids(parse_ids(nodes))}"
    return otherwise


def processes_of(result: dict[str, Any]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Return what was planned by kind and ranks; nothing where planning was refused."""
    return {(p["kind"], p["local_rank"], p["dp_local_rank"]): p for p in result["plan"].get("processes", [])}


def check(name: str, state: dict[str, Any], planned: dict[str, Any] | None, parent: dict[str, Any]) -> None:
    """Hold one process's truth against its plan; unbound, it is what its parent is."""
    bound = bool(planned and planned["numactl_args"]) and name != "noexec"
    cpus = planned["cpus"] if bound and planned else parent["cpus"]
    assert state["cpus"] == cpus
    assert state["threads"] == [cpus]
    assert state["variables"] == []
    forbidden = name in NO_MEMORY_POLICY
    policy = policy_of(planned, parent["policy"]) if bound and planned and not forbidden else parent["policy"]
    assert state["policy"] == policy
    if bound and planned and planned["memory_nodes"] and not forbidden:
        assert set(state["pages"]) <= {str(node) for node in planned["memory_nodes"]}
    assert sum(state["pages"].values()) > 0


@pytest.mark.parametrize(("guest", "name"), PLANNED)
def test_the_kernel_shows_what_the_plan_printed(guest: str, name: str) -> None:
    result = scenario(guest, name)
    planned = processes_of(result)
    engines = {line["dp_local_rank"]: line["state"] for line in result["seen"] if line["kind"] == "EngineCore"}
    for line in result["seen"]:
        parent = result["before"]
        if line["way"] == "engine" and line["kind"] == "worker":
            parent = engines[line["dp_local_rank"]]
        check(name, line["state"], planned.get((line["kind"], line["local_rank"], line["dp_local_rank"])), parent)
    command = result.get("command")
    if command and command["status"] == 0:
        check(name, command["state"], result["plan"]["launched"], result["before"])


@pytest.mark.parametrize(("guest", "name"), PLANNED)
def test_every_planned_process_was_started(guest: str, name: str) -> None:
    result = scenario(guest, name)
    if "raised" in result or "error" in result["plan"]:
        assert result["seen"] == []
        return
    seen = {(line["kind"], line["local_rank"], line["dp_local_rank"]) for line in result["seen"]}
    assert seen == processes_of(result).keys()
    ways = {"engine", *(("spawn", "current") if name == "auto" else ("current",) if name == "explicit" else ())}
    assert {line["way"] for line in result["seen"]} == ways


@pytest.mark.parametrize(("guest", "name"), PLANNED)
def test_parent_and_resource_tracker_stay_as_they_were(guest: str, name: str) -> None:
    result = scenario(guest, name)
    keys = ("cpus", "threads", "policy", "executable", "ours")
    assert {key: result["before"][key] for key in keys} == {key: result["after"][key] for key in keys}
    assert result["tracker"] == result["before"]["cpus"]


@pytest.mark.parametrize(
    ("guest", "name", "skip"),
    [
        ("two", "off", "disabled"),
        ("two", "taskset-auto", "affinity-constrained"),
        ("two", "policy-set", "mempolicy-set"),
        ("two", "cpuset-one-node", "cpus-not-allowed"),
        ("two", "numactl-missing", "numactl-missing"),
        ("odd", "auto", "node-without-cpus"),
        ("unknown", "auto", "gpu-node-unknown"),
    ],
)
def test_what_stays_unbound_and_why(guest: str, name: str, skip: str) -> None:
    result = scenario(guest, name)
    assert result["plan"]["skip_reason"]["code"] == skip
    assert result["plan"]["bound"] is False
    assert any(f"({skip})" in said for said in result["said"])
    assert f"({skip})" in result["command"]["stderr"]


@pytest.mark.parametrize(
    ("guest", "name"),
    [(guest, name) for guest, name in PLANNED if name in ("auto", "cpuset-part", "offline-one") and guest != "unknown"],
)
def test_auto_mode_binds_where_it_is_safe(guest: str, name: str) -> None:
    if guest != "odd":
        assert all(process["numactl_args"] for process in scenario(guest, name)["plan"]["processes"])


def workers(result: dict[str, Any]) -> list[list[str]]:
    return [process["numactl_args"] for process in result["plan"]["processes"] if process["kind"] == "worker"]


def test_gpus_in_permuted_order() -> None:
    nodes = (3, 2, 1, 0, 7, 6, 5, 4)
    assert workers(scenario("eight", "auto")) == [[f"--cpunodebind={n}", f"--preferred={n}"] for n in nodes]


def test_a_node_without_memory_and_one_without_cpus() -> None:
    result = scenario("odd", "explicit")
    assert workers(result) == [
        ["--cpunodebind=0", "--membind=0"],
        ["--cpunodebind=1", "--membind=1"],
        ["--physcpubind=4-5"],
        ["--physcpubind=4-5"],
    ]
    codes = [{reason["code"] for reason in p["reasons"]} for p in result["plan"]["processes"] if p["kind"] == "worker"]
    assert codes[2] == {"node-narrowed", "node-without-memory"}
    assert codes[3] == {"nearest-node", "node-narrowed", "node-without-memory"}


def test_gpus_without_numa_information_need_a_word() -> None:
    refused = scenario("unknown", "explicit")
    assert refused["plan"]["status"] == 2
    assert "--numa-nodes" in refused["plan"]["error"]
    assert refused["raised"].startswith("ConfigError")
    assert workers(scenario("unknown", "nodes")) == [
        ["--cpunodebind=1", "--membind=1"],
        ["--cpunodebind=0", "--membind=0"],
    ]
    spread = workers(scenario("unknown", "spread"))
    assert spread == [[f"--cpunodebind={node}", f"--membind={node}"] for node in (0, 0, 1)]


@pytest.mark.parametrize("name", ["amd-driver", "nvidia-driver"])
def test_the_driver_knows_what_the_firmware_does_not_say(name: str) -> None:
    result = scenario("unknown", name)
    assert workers(result) == [["--cpunodebind=1", "--preferred=1"], ["--cpunodebind=0", "--preferred=0"]]
    source = {"amd-driver": "amd-node", "nvidia-driver": "nvml-cpus"}[name]
    assert [(gpu["node"], gpu["source"]) for gpu in result["plan"]["gpus"]] == [(1, source), (0, source)]


@pytest.mark.parametrize(
    ("guest", "name"),
    [(guest, name) for guest, spec in GUESTS.items() for name in spec.scenarios if name.startswith("capture")],
)
def test_a_capture_prints_what_the_host_prints(guest: str, name: str) -> None:
    result = scenario(guest, name)
    assert result["status"] == 0
    assert result["captured"] == result["here"]
    assert [status for status, _ in result["here"]] == [0, 0, 0, 2 if guest == "unknown" else 0]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("taskset-explicit", [["--physcpubind=0-1", "--membind=0"], ["--cpunodebind=1", "--membind=1"]]),
        ("taskset-elsewhere", [[], ["--physcpubind=4-5", "--membind=1"]]),
        ("cpuset-part", [["--physcpubind=1-3", "--preferred=0"], ["--physcpubind=4-6", "--preferred=1"]]),
        ("cpuset-one-node-explicit", [[], ["--cpunodebind=1", "--membind=1"]]),
        ("cpuset-fewer-mems", [["--cpunodebind=0", "--membind=0"], ["--physcpubind=4-7"]]),
        ("offline-one", [["--cpunodebind=0", "--preferred=0"], ["--cpunodebind=1", "--preferred=1"]]),
    ],
)
def test_limits_narrow_and_are_never_left(name: str, args: list[list[str]]) -> None:
    assert workers(scenario("two", name)) == [args[node] for node in (0, 1, 1, 0)]


@pytest.mark.parametrize("name", NO_MEMORY_POLICY)
def test_forbidden_memory_policies_leave_the_cpus_bound_and_are_said(name: str) -> None:
    result = scenario("two", name)
    assert any("memory is not bound" in said and "SYS_NICE" in said for said in result["said"])
    assert "memory is not bound" in result["command"]["stderr"]
    kept = "--physcpubind" if name == "seccomp-new" else "--cpunodebind"
    assert all(f"only {kept}" in said for said in result["said"] if "memory is not bound" in said)


def test_strict_fails_where_memory_policies_are_forbidden() -> None:
    result = scenario("two", "seccomp-strict")
    assert result["raised"].startswith("StrictError")
    assert result["command"]["status"] == 1
    assert result["command"]["stderr"].startswith("Error: cannot bind as planned")


def test_a_wrapper_on_a_noexec_mount_is_said() -> None:
    assert any("may not be executed" in said for said in scenario("two", "noexec")["said"])


def test_explicit_binding_without_numactl_names_the_package() -> None:
    result = scenario("two", "numactl-missing-explicit")
    assert "install the package numactl" in result["raised"]
    assert result["command"]["status"] == 2


def test_sixteen_threads_start_workers_of_their_own_rank() -> None:
    result = scenario("eight", "threads")
    assert len(result["seen"]) == 16
    assert result["seen"] == result["wanted"]


def test_workers_of_a_pool_are_bound_as_planned_and_so_are_those_that_replace_them() -> None:
    result = scenario("two", "pool")
    planned = processes_of(result)
    assert len({line["pid"] for line in result["seen"]}) == 8
    assert sorted(line["rank"] for line in result["seen"]) == [0, 0, 1, 1, 2, 2, 3, 3]
    for line in result["seen"]:
        worker = planned["worker", line["rank"], 0]
        assert worker["numactl_args"]
        check("pool", line["state"], worker, result["before"])
    # The parent's own pages go where it happens to run, as it is not bound.
    assert {**result["before"], "pages": None} == {**result["after"], "pages": None}
    assert result["tracker"] == result["before"]["cpus"]


def test_copies_are_each_bound_as_planned_and_as_reported() -> None:
    result = scenario("eight", "copies")
    assert result["status"] == 0, result["said"]
    planned = [process for process in result["plan"]["processes"] if process["kind"] == "worker"]
    assert len(planned) == len(result["states"]) == 8
    for process in planned:
        rank = process["local_rank"]
        state = result["states"][f"[{rank}]"]
        check("copies", state, process, state)
        node = process["nodes"][0]
        reported = rf"rank {rank} \(PID \d+\): policy prefer:{node}, CPUs {process['cpus']}, nodes {node} \(whole\)"
        assert re.search(reported, result["said"])


def test_workers_killed_in_mid_start_leave_nothing() -> None:
    result = scenario("two", "killed")
    assert result["statuses"] == [-9] * 4
    assert result["left"] == []
    keys = ("cpus", "policy", "executable", "ours")
    assert {key: result["before"][key] for key in keys} == {key: result["after"][key] for key in keys}


@pytest.mark.parametrize("guest", [guest for guest, spec in GUESTS.items() if "accepted" in spec.scenarios])
def test_both_backends_accept_every_planned_argument_and_leave_the_same(guest: str) -> None:
    said = scenario(guest, "accepted")["said"]
    assert len(said) >= 40
    assert {key: both for key, both in said.items() if both[0] != both[1]} == {}
    shown = re.compile(r"Cpus_allowed_list:\t[0-9,-]+\n(default|prefer|bind|interleave)[^\n]*\n")
    assert [key for key, (by_numactl, _) in said.items() if not shown.fullmatch(by_numactl)] == []


@pytest.mark.parametrize("guest", [guest for guest, spec in GUESTS.items() if "accepted" in spec.scenarios])
def test_both_backends_refuse_the_same_nodes(guest: str) -> None:
    both = scenario(guest, "accepted")["one by one"]
    taken = {arg: [shown.startswith("Cpus_allowed_list") for shown in pair] for arg, pair in both.items()}
    assert {arg: pair for arg, pair in both.items() if any(taken[arg]) and pair[0] != pair[1]} == {}
    last = max(int(arg.partition("=")[2]) for arg in both)
    refused = {"--cpunodebind=2", "--cpunodebind=3", *(f"--{option}=2" for option in builtin.MODES)}
    unknown = {arg for arg in both if arg.endswith(f"={last}")}
    assert {arg for arg, each in taken.items() if not any(each)} == unknown | (refused if guest == "odd" else set())


@pytest.mark.parametrize(("guest", "name"), [("eight", "builtin"), ("two", "builtin-explicit")])
def test_the_built_in_backend_binds_where_numactl_is_missing(guest: str, name: str) -> None:
    result = scenario(guest, name)
    assert all(process["numactl_args"] for process in result["plan"]["processes"])
    assert "built-in backend" in result["command"]["stderr"]


@pytest.mark.parametrize(
    ("guest", "limit", "check", "status", "names"),
    [
        ("two", "seccomp", "policy-set", "warning", "seccomp"),
        ("two", "cpuset", "cpuset", "fail", "cpuset"),
        ("two", "taskset", "affinity", "fail", "taskset"),
        ("two", "noexec", "wrapper", "fail", "noexec"),
        ("two", "numactl", "backend", "fail", "numactl"),
        ("two", "policy", "inherited-policy", "fail", "interleave:0-1"),
        ("odd", "none", "gpus", "fail", "no CPUs"),
        ("one", "none", "nodes", "fail", "one node"),
    ],
)
def test_doctor_names_the_limit_and_no_other_and_its_fix_helps(
    guest: str, limit: str, check: str, status: str, names: str
) -> None:
    found, fixed = scenario(guest, "doctor" if limit == "none" else "doctor-limits")[limit]
    assert trouble(found) == {check: status}
    (named,) = [each for each in found["checks"] if each["name"] == check]
    assert names in named["message"] + named["fix"]
    assert found["fix"] == named["fix"]
    assert (found["status"], found["would_bind"]) == ((1, False) if status == "fail" else (0, True))
    assert (fixed["status"], fixed["would_bind"], trouble(fixed)) == (0, True, {})


def test_doctor_finds_nothing_where_nothing_is_wrong() -> None:
    for found in scenario("two", "doctor-limits")["none"]:
        assert (found["status"], found["can_bind"], found["would_bind"], trouble(found)) == (0, True, True, {})
