"""srun's options as made from plans: every method, what the step must hold, and what is refused."""

from typing import Any

import pytest

from numa_launch import ConfigError, LaunchConfig, StrictError, srun_options
from numa_launch.launchers.srun_line import Step, given_options, srun_line, srun_plan, step_of
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from tests.lay import FOUR_GPUS, Description, lay

EIGHT: Description = {
    "nodes": {str(i): {"cpus": f"{2 * i}-{2 * i + 1}"} for i in range(8)},
    "gpus": [{"node": node} for node in range(8)],
}
PERMUTED: Description = {**EIGHT, "gpus": [{"node": node} for node in (3, 2, 1, 0, 7, 6, 5, 4)]}
INSIDE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_CPUS_PER_NODE": "16(x2)"}
ANOTHERS_STEP = {
    "SLURM_STEP_ID": "3",
    "SLURM_LOCALID": "5",
    "SLURM_STEP_TASKS_PER_NODE": "6",
    "SLURM_CPU_BIND": "quiet",
}


@pytest.fixture
def machine(tmp_path: Any) -> Any:
    def laid(description: Description, **also: Any) -> Machine:
        return read_machine(lay(tmp_path / "root", {**description, **also}), environ={})

    return laid


def options(machine: Machine, ranks: int, method: str | bool | None = True, *given: str, **fields: Any) -> list[str]:
    environ = fields.pop("environ", INSIDE)
    return srun_options(machine, LaunchConfig(**fields), ranks, method, given=given, environ=environ)


@pytest.mark.parametrize(
    ("method", "value"),
    [
        (True, "rank_ldom"),
        ("auto", "rank_ldom"),
        ("rank_ldom", "rank_ldom"),
        ("map_ldom", "map_ldom:0,1,2,3,4,5,6,7"),
        ("mask_ldom", "mask_ldom:0x1,0x2,0x4,0x8,0x10,0x20,0x40,0x80"),
        ("map_cpu", "map_cpu:0,2,4,6,8,10,12,14"),
        ("mask_cpu", "mask_cpu:0x3,0xc,0x30,0xc0,0x300,0xc00,0x3000,0xc000"),
    ],
)
def test_every_method_inside_an_allocation(machine: Any, method: str | bool, value: str) -> None:
    assert options(machine(EIGHT), 8, method) == [f"--cpu-bind=verbose,{value}", "--whole"]


@pytest.mark.parametrize(
    ("method", "expected"), [(None, []), (False, ["--cpu-bind=none"]), ("none", ["--cpu-bind=none"])]
)
def test_what_adds_no_binding(machine: Any, method: str | bool | None, expected: list[str]) -> None:
    assert options(machine(EIGHT), 8, method) == expected


@pytest.mark.parametrize("method", ["cores", 1.5, [], "RANK_LDOM"])
def test_another_method_is_refused_by_name_and_value(machine: Any, method: Any) -> None:
    with pytest.raises(ConfigError, match=r"numa_cpu_bind: .*must be None, True, False"):
        options(machine(EIGHT), 8, method)


@pytest.mark.parametrize("ranks", [0, -1, True, "8"])
def test_a_number_of_tasks_that_is_none(machine: Any, ranks: Any) -> None:
    with pytest.raises(ConfigError, match="ntasks_per_node"):
        options(machine(EIGHT), ranks)


@pytest.mark.parametrize("given", ["--exact", b"--exact", ["-c", 2], [None]])
def test_options_given_that_are_no_words(machine: Any, given: Any) -> None:
    with pytest.raises(ConfigError, match="given: "):
        srun_options(machine(EIGHT), LaunchConfig(), 8, True, given=given, environ=INSIDE)


def test_a_permuted_map_gets_masks(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    masks = "0xc0,0x30,0xc,0x3,0xc000,0x3000,0xc00,0x300"
    assert options(machine(PERMUTED), 8)[0] == f"--cpu-bind=verbose,mask_cpu:{masks}"
    assert not caplog.messages


def test_rank_ldom_asked_for_where_it_is_wrong_is_done_and_both_maps_are_said(
    machine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert options(machine(PERMUTED), 8, "rank_ldom")[0] == "--cpu-bind=verbose,rank_ldom"
    assert "0 1 2 3 4 5 6 7" in caplog.text
    assert "3 2 1 0 7 6 5 4" in caplog.text


def test_ranks_that_wrap_as_slurm_does_are_no_mismatch(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    options(machine({**EIGHT, "gpus": [{"node": i % 8} for i in range(12)]}), 12, "rank_ldom")
    assert not caplog.messages


def test_sparse_nodes_are_counted_to_the_highest(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    sparse = {"nodes": {"0": {"cpus": "0-7"}, "8": {"cpus": "8-15"}}, "gpus": [{"node": 0}, {"node": 8}]}
    assert options(machine(sparse), 2)[0] == "--cpu-bind=verbose,mask_cpu:0xff,0xff00"
    options(machine(sparse), 2, "rank_ldom")
    assert "to nodes 0 1, but the plan has nodes 0 8" in caplog.text


def test_priority_cores_get_masks_even_where_rank_i_is_on_node_i(machine: Any) -> None:
    described = {
        "nodes": {"0": {"cpus": "0-31"}, "1": {"cpus": "32-63"}},
        "gpus": [{"node": 0}, {"node": 1}],
        "cpu_model": "Intel(R) Xeon(R) 6776P",
        "highest_perf": 46,
    }
    environ = {"SLURM_JOB_ID": "7"}
    assert options(machine(described), 2, environ=environ)[0] == "--cpu-bind=verbose,mask_cpu:0x30003,0x3000300000000"


def test_map_cpu_gives_each_rank_a_cpu_of_its_own(machine: Any) -> None:
    assert options(machine(FOUR_GPUS), 4, "map_cpu")[0] == "--cpu-bind=verbose,map_cpu:0,1,8,9"
    with pytest.raises(ConfigError, match="none is left of 0 for rank 1: use mask_cpu"):
        options(machine(FOUR_GPUS), 2, "map_cpu", numa_bind_cpus=["0", "0"])


def test_cpu_lists(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    lists: dict[str, Any] = {"numa_bind_cpus": ["0-1", "2-3"]}
    assert options(machine(FOUR_GPUS), 2, **lists)[0] == "--cpu-bind=verbose,mask_cpu:0x3,0xc"
    for method in ("map_ldom", "mask_ldom"):
        with pytest.raises(ConfigError, match="use mask_cpu"):
            options(machine(FOUR_GPUS), 2, method, **lists)
    options(machine(FOUR_GPUS), 2, "rank_ldom", **lists)
    assert "CPUs 0-1 2-3" in caplog.text


def test_ranks_of_several_nodes(machine: Any) -> None:
    described = machine(EIGHT)
    config = LaunchConfig()
    made = srun_plan(described, config, 2, spread=True)
    step = Step(inside=True)
    assert srun_line(described, config, made, "mask_ldom", step).added[0] == "--cpu-bind=verbose,mask_ldom:0xf,0xf0"
    with pytest.raises(ConfigError, match="use mask_ldom"):
        srun_line(described, config, made, "map_ldom", step)
    with pytest.raises(ConfigError, match="leave --memory out"):
        srun_line(described, LaunchConfig(memory_policy="membind"), made, "mask_cpu", step)


# --- The step


OUTSIDE = ["--exclusive", "--cpus-per-task=2"]


@pytest.mark.parametrize(
    ("environ", "given", "added"),
    [
        ({}, [], OUTSIDE),
        (ANOTHERS_STEP, [], OUTSIDE),
        ({}, ["--exclusive=user"], ["--cpus-per-task=2"]),
        ({}, ["--whole"], ["--cpus-per-task=2"]),
        ({}, ["-c", "2"], ["--exclusive"]),
        ({}, ["-c2"], ["--exclusive"]),
        ({}, ["--cpus-per-t=3"], ["--exclusive"]),
        ({"SRUN_CPUS_PER_TASK": "2"}, [], ["--exclusive"]),
        ({}, ["--jobid=9"], ["--whole"]),
        ({}, ["--jobid", "9"], ["--whole"]),
        (INSIDE, [], ["--whole"]),
        ({**INSIDE, **ANOTHERS_STEP}, [], ["--whole"]),
        (INSIDE, ["--whole"], []),
        (INSIDE, ["-c", "2"], ["--whole"]),
        (INSIDE, ["--exclusive"], ["--cpus-per-task=2"]),
    ],
)
def test_what_makes_the_step_hold_the_host(
    machine: Any, environ: dict[str, str], given: list[str], added: list[str]
) -> None:
    assert options(machine(EIGHT), 8, True, *given, environ=environ)[1:] == added


@pytest.mark.parametrize(
    ("environ", "given", "named"),
    [
        (INSIDE, ["--exact"], "--exact"),
        ({}, ["--exac"], "--exac"),
        (INSIDE, ["--hint=nomultithread"], "--hint"),
        ({**INSIDE, "SLURM_HINT": "compute_bound"}, [], "SLURM_HINT"),
        ({**INSIDE, "SLURM_EXACT": "1"}, [], "SLURM_EXACT"),
        (INSIDE, ["-c1"], "-c"),
        (INSIDE, ["-lc", "1"], "-c"),
        ({}, ["--cpus-per-task", "1"], "--cpus-per-task"),
        ({**INSIDE, "SRUN_CPUS_PER_TASK": "1"}, [], "SRUN_CPUS_PER_TASK"),
    ],
)
def test_what_does_not_go_with_a_binding(machine: Any, environ: dict[str, str], given: list[str], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        options(machine(EIGHT), 8, True, *given, environ=environ)
    assert named in str(raised.value).split()[0] or f"({named})" in str(raised.value)
    assert options(machine(EIGHT), 8, None, *given, environ=environ) == []
    assert options(machine(EIGHT), 8, False, *given, environ=environ) == ["--cpu-bind=none"]


def test_cpus_that_do_not_divide(machine: Any) -> None:
    with pytest.raises(ConfigError, match="salloc --exclusive"):
        options(machine(EIGHT), 3, environ={})
    assert options(machine(EIGHT), 3)[1:] == ["--whole"]
    assert options(machine(EIGHT), 3, True, "-c6", environ={})[1:] == ["--exclusive"]


PART = {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "4"}


def test_in_a_part_of_the_host_masks_stay_within_the_cpuset(machine: Any) -> None:
    part = machine(EIGHT, cpuset="0-3")
    assert options(part, 2, environ=PART) == ["--cpu-bind=verbose,mask_cpu:0x3,0xc", "--whole"]
    assert options(part, 2, "map_cpu", environ=PART)[0] == "--cpu-bind=verbose,map_cpu:0,2"
    assert options(part, 2, True, "-c2", environ=PART)[1:] == ["--whole"]


@pytest.mark.parametrize("method", ["rank_ldom", "map_ldom", "mask_ldom"])
def test_in_a_part_of_the_host_nodes_are_refused(machine: Any, method: str) -> None:
    with pytest.raises(ConfigError, match="--exclusive"):
        options(machine(EIGHT, cpuset="0-3"), 2, method, environ=PART)


@pytest.mark.parametrize("method", [True, "mask_cpu", "map_cpu"])
def test_a_part_of_the_host_that_no_cpuset_shows_is_refused(machine: Any, method: str | bool) -> None:
    with pytest.raises(ConfigError, match="--exclusive"):
        options(machine(EIGHT), 2, method, environ=PART)


def test_an_explicit_rank_without_usable_cpus_may_run_anywhere(machine: Any) -> None:
    part = machine(PERMUTED, cpuset="0-7")
    environ = {**PART, "SLURM_JOB_CPUS_PER_NODE": "8"}
    masks = "0xc0,0x30,0xc,0x3,0xff"
    assert options(part, 5, environ=environ, numa_bind=True)[0] == f"--cpu-bind=verbose,mask_cpu:{masks}"
    with pytest.raises(ConfigError, match="rank 4 may use no CPU"):
        options(part, 5, "map_cpu", environ=environ, numa_bind=True)


@pytest.mark.parametrize(
    ("environ", "given", "hosts"),
    [
        (INSIDE, [], 2),
        (INSIDE, ["-N1"], 1),
        (INSIDE, ["--nodes=3"], 3),
        (INSIDE, ["--nodes", "1-2"], None),
        (INSIDE, ["--jobid=8"], None),
        ({}, [], None),
    ],
)
def test_how_many_hosts_the_step_has(environ: dict[str, str], given: list[str], hosts: int | None) -> None:
    assert step_of(given, environ).hosts == hosts


@pytest.mark.parametrize(
    ("text", "cpus"), [("16(x2)", 16), ("16,8(x3)", 8), ("128", 128), ("", None), ("x", None), ("8,?", None)]
)
def test_the_cpus_of_the_allocation(text: str, cpus: int | None) -> None:
    assert step_of([], {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": text}).allocated_cpus == cpus


@pytest.mark.parametrize(
    ("value", "said"),
    [("1", True), ("yes", True), ("", True), ("-1", True), ("0", False), ("00", False), ("no", False)],
)
def test_variables_of_flags_are_read_as_srun_reads_them(value: str, said: bool) -> None:
    assert step_of([], {**INSIDE, "SLURM_WHOLE": value}).whole == said
    assert step_of([], {**INSIDE, "SLURM_EXACT": value}).forbidding == ("SLURM_EXACT" if said else None)


def test_an_empty_variable_may_say_exclusive_but_no_value() -> None:
    empty = {"SLURM_EXCLUSIVE": "", "SLURM_HINT": "", "SRUN_CPUS_PER_TASK": ""}
    assert step_of([], empty) == Step(exclusive=True)


def test_another_jobs_variables_play_no_part() -> None:
    assert step_of(["--jobid=8"], INSIDE).allocated_cpus is None


def test_srun_options_that_are_something_else() -> None:
    words = [
        "--exclude=a",
        "--export=ALL",
        "--ntasks-per-core=1",
        "--nodelist",
        "a",
        "-v",
        "--gpus-per-task=2",
        "--mem=1G",
    ]
    assert given_options(words) == {}


# --- Limits, plans that stay unbound, memory


def test_affinity_and_policy_of_this_process_play_no_part(machine: Any) -> None:
    limited = machine(EIGHT, allowed_cpus="0-1", policy="bind:0")
    assert options(limited, 8)[0] == "--cpu-bind=verbose,rank_ldom"


@pytest.mark.parametrize(
    ("fields", "ranks", "said"),
    [
        ({"numa_bind": False}, 8, "switched off"),
        ({}, 9, "entry 8"),
        ({"distributed_executor_backend": "ray"}, 8, "=ray"),
    ],
)
def test_a_plan_that_stays_unbound_adds_nothing_and_warns(
    machine: Any, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], ranks: int, said: str
) -> None:
    assert options(machine(EIGHT), ranks, **fields) == []
    assert said in caplog.text


def test_the_fleets_switch(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert options(machine(EIGHT), 8, environ={**INSIDE, "NUMA_LAUNCH_BIND": "0"}) == []
    assert "NUMA_LAUNCH_BIND=0" in caplog.text


def test_parallel_sizes_play_no_part(machine: Any) -> None:
    sizes: dict[str, Any] = {"tensor_parallel_size": 2, "data_parallel_size": 4, "data_parallel_rank": 3, "nnodes": 2}
    assert options(machine(EIGHT), 8, **sizes)[0] == "--cpu-bind=verbose,rank_ldom"


@pytest.mark.parametrize(
    ("policy", "added"),
    [
        ("membind", ["--mem-bind=map_mem:3,2"]),
        ("preferred", ["--mem-bind=prefer,map_mem:3,2"]),
        ("none", []),
        ("auto", []),
    ],
)
def test_memory_is_bound_where_asked_for(machine: Any, policy: str, added: list[str]) -> None:
    assert options(machine(PERMUTED), 2, memory_policy=policy)[1:-1] == added


@pytest.mark.parametrize(
    ("policy", "method", "given"),
    [("interleave", True, []), ("membind", "none", []), ("membind", True, ["--mem-bind=none"])],
)
def test_memory_that_srun_cannot_do(machine: Any, policy: str, method: str | bool, given: list[str]) -> None:
    with pytest.raises(ConfigError, match="leave"):
        options(machine(EIGHT), 8, method, *given, memory_policy=policy)


def test_a_node_without_memory_leaves_memory_alone(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    nodes = {"0": {"cpus": "0-1"}, "1": {"cpus": "2-3", "mem_mb": 0}}
    described = machine({"nodes": nodes, "gpus": [{"node": 0}, {"node": 1}]})
    assert options(described, 2, memory_policy="membind") == ["--cpu-bind=verbose,rank_ldom", "--whole"]
    (said,) = caplog.messages
    assert "--memory membind is left out for all ranks" in said
    assert "rank 1 has none" in said
    with pytest.raises(StrictError, match="left out for all ranks"):
        options(described, 2, memory_policy="membind", strict=True)


@pytest.mark.parametrize("own", ["--cpu-bind=cores", "--cpu_bind", "--cpu-b=none"])
def test_a_binding_of_the_users_own_does_not_go_with_ours(machine: Any, own: str) -> None:
    with pytest.raises(ConfigError, match=r"given: '--cpu.*leave one of them out"):
        options(machine(EIGHT), 8, "auto", own)


@pytest.mark.parametrize(
    ("given", "variables"),
    [(["--cpus-per-gpu=2"], {}), (["--cpus-per-g", "2"], {}), ([], {"SLURM_CPUS_PER_GPU": "2"})],
)
def test_cpus_of_a_gpu_do_not_go_with_those_of_a_task(
    machine: Any, given: list[str], variables: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=r"(?i)cpus.per.g.* does not go with --cpus-per-task.*sbatch --exclusive"):
        options(machine(EIGHT), 8, True, *given, environ=variables)
    with pytest.raises(ConfigError, match="leave --exclusive out"):
        options(machine(EIGHT), 8, True, *given, "--exclusive", environ={**INSIDE, **variables})
    assert options(machine(EIGHT), 8, True, *given, environ={**INSIDE, **variables})[1:] == ["--whole"]


def test_a_plan_that_binds_nothing_says_so(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert options(machine({"nodes": EIGHT["nodes"]}), 8) == []
    (said,) = caplog.messages
    assert said.startswith("staying unbound (no-gpu): ")


def test_lists_that_are_the_nodes_are_what_rank_ldom_binds_to(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    lists = [f"{2 * node}-{2 * node + 1}" for node in range(8)]
    assert options(machine(EIGHT), 8, "rank_ldom", numa_bind_cpus=lists)[0] == "--cpu-bind=verbose,rank_ldom"
    assert caplog.messages == []
