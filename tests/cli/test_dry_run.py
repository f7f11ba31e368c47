"""``--dry-run``: which processes it shows, what COMMAND becomes, and the JSON to the letter."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numa_launch.cli import status_of
from tests.lay import FOUR_GPUS, TWO_NODES, Description, lay

DryRun = Callable[..., dict[str, Any]]


@pytest.fixture
def dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Return a function that plans for a described machine and returns the JSON, or the error."""

    def run(machine: Description, *args: str, command: tuple[str, ...] = (), **environ: str) -> dict[str, Any]:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        root = lay(tmp_path / f"root{len(list(tmp_path.iterdir()))}", machine)
        tail = ["--", *command] if command else []
        status = status_of(["--dry-run", "--json", "--root", str(root), *args, *tail])
        printed = capsys.readouterr()
        if status:
            assert printed.err.startswith("Error: ")
            assert "\n" not in printed.err.partition("Usage:")[0].strip()
            return {"status": status, "error": printed.err}
        return dict(json.loads(printed.out))

    return run


def identities(plan: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(p["kind"][0], p["local_rank"], p["dp_local_rank"]) for p in plan["processes"]]


def test_the_json_to_the_letter(dry_run: DryRun) -> None:
    machine = {
        "nodes": {"0": {"cpus": "0-15"}, "1": {"cpus": "16-31"}, "2": {"cpus": "32-47"}, "3": {"cpus": "48-63"}},
        "gpus": [{"node": 3, "bdf": "0000:07:00.0"}, {"node": 1, "bdf": "0000:47:00.0"}],
        "allowed_cpus": "0-47,50-63",
    }
    plan = dry_run(machine, "--bind", command=("python", "worker.py"))
    reasons = plan["processes"][1]["reasons"]
    assert [set(reason) for reason in reasons] == [{"code", "message"}]
    narrowed = {"reasons": reasons, "numactl_args": ["--physcpubind=50-63", "--membind=3"]}
    engine = {
        "kind": "EngineCore",
        "local_rank": 0,
        "dp_local_rank": 0,
        "gpu_index": None,
        "nodes": [1, 3],
        "cpus": "16-31,50-63",
        "memory_nodes": [1, 3],
        "numactl_args": ["--physcpubind=16-31,50-63", "--membind=1,3"],
        "reasons": plan["processes"][0]["reasons"],
    }
    worker = {"kind": "worker", "local_rank": 0, "dp_local_rank": 0, "gpu_index": 0, "nodes": [3], "cpus": "50-63"}
    other = {"kind": "worker", "local_rank": 1, "dp_local_rank": 0, "gpu_index": 1, "nodes": [1], "cpus": "16-31"}
    assert plan == {
        "schema": 1,
        "mode": "explicit",
        "bound": True,
        "skip_reason": None,
        "gpus": [
            {"index": 0, "bdf": "0000:07:00.0", "uuid": None, "node": 3, "source": "pci-node"},
            {"index": 1, "bdf": "0000:47:00.0", "uuid": None, "node": 1, "source": "pci-node"},
        ],
        "processes": [
            engine,
            {**worker, "memory_nodes": [3], **narrowed},
            {**other, "memory_nodes": [1], "numactl_args": ["--cpunodebind=1", "--membind=1"], "reasons": []},
        ],
        "warnings": [],
        "command": ["python", "worker.py"],
        "launched": engine,
    }
    assert [reason["code"] for reason in reasons] == ["node-narrowed"]


def test_without_a_command_it_is_an_empty_list(dry_run: DryRun) -> None:
    assert dry_run(FOUR_GPUS)["command"] == []


def test_an_unbound_process_has_nothing(dry_run: DryRun) -> None:
    plan = dry_run(TWO_NODES)
    assert plan["skip_reason"].keys() == {"code", "message"}
    for process in [*plan["processes"], plan["launched"]]:
        assert (process["nodes"], process["memory_nodes"], process["numactl_args"], process["cpus"]) == ([], [], [], "")


@pytest.mark.parametrize(
    ("args", "environ", "shown"),
    [
        ((), {}, "E00 w00 w10 w20 w30"),
        (("--nproc", "2"), {}, "E00 w00 w10"),
        (("--tp", "2"), {}, "E00 w00 w10"),
        (("--pp", "2"), {}, "E00 w00 w10 w20 w30"),
        (("--dp", "2", "--dp-local", "2"), {}, "E00 E01 w00 w10 w01 w11"),
        (("--dp", "2", "--dp-local", "2", "--dp-local-rank", "1"), {}, "E01 w01 w11"),
        (("--dp", "2", "--dp-rank", "1", "--tp", "2"), {}, "E01 w01 w11"),
        (("--kind", "EngineCore"), {}, "E00"),
        (("--kind", "worker"), {}, "w00 w10 w20 w30"),
        (("--rank", "2"), {}, "w20"),
        ((), {"LOCAL_RANK": "2"}, "w20"),
        (("--tp", "2"), {"LOCAL_RANK": "3"}, "w11"),
        (("--tp", "2", "--dp-local-rank", "1"), {"LOCAL_RANK": "1"}, "w11"),
        (("--kind", "EngineCore"), {"LOCAL_RANK": "3"}, "E00"),
        (("--executor", "external_launcher"), {}, "w00 w10 w20 w30"),
        (("--executor", "external_launcher", "--dp", "2"), {}, "w00 w10 w20 w30"),
        (("--executor", "external_launcher", "--tp", "2", "--rank", "3"), {}, "w30"),
        (("--device-ids", "2,3", "--bind"), {}, "E00 w00 w10"),
        (("--numa-nodes", "0,1"), {"CUDA_VISIBLE_DEVICES": ""}, "E00 w00 w10"),
        (("--numa-cpus", "0", "--numa-cpus", "1", "--numa-cpus", "2"), {"CUDA_VISIBLE_DEVICES": ""}, "E00 w00 w10 w20"),
        (("--map", "rank"), {"LOCAL_WORLD_SIZE": "3"}, "E00 w00 w10 w20"),
    ],
)
def test_which_processes_are_shown(dry_run: DryRun, args: tuple[str, ...], environ: dict[str, str], shown: str) -> None:
    plan = dry_run(FOUR_GPUS, *args, **environ)
    assert " ".join(f"{kind}{rank}{shard}" for kind, rank, shard in identities(plan)) == shown


@pytest.mark.parametrize(
    ("args", "environ", "launched"),
    [
        ((), {}, ("EngineCore", [0, 1])),
        (("--tp", "2"), {}, ("EngineCore", [0, 1])),
        (("--kind", "EngineCore", "--tp", "2"), {}, ("EngineCore", [0])),
        (("--kind", "EngineCore", "--tp", "2", "--dp", "2", "--dp-local", "2"), {}, ("EngineCore", [0, 1])),
        (("--kind", "EngineCore", "--tp", "2", "--dp-local-rank", "1"), {}, ("EngineCore", [1])),
        (("--kind", "EngineCore", "--tp", "2"), {"LOCAL_RANK": "3"}, ("EngineCore", [1])),
        ((), {"LOCAL_RANK": "3"}, ("worker", [1])),
        (("--kind", "worker"), {}, None),
        (("--nproc", "4"), {}, None),
    ],
)
def test_what_the_command_becomes(
    dry_run: DryRun, args: tuple[str, ...], environ: dict[str, str], launched: tuple[str, list[int]] | None
) -> None:
    got = dry_run(FOUR_GPUS, "--bind", *args, **environ)["launched"]
    assert (got and (got["kind"], got["nodes"])) == launched


@pytest.mark.parametrize(
    ("args", "index", "node"),
    [((), 0, 1), (("--numa-nodes", "0"), 0, 0), (("--numa-nodes", "1,1,0"), 0, 0), (("--numa-nodes", "1,0,1"), 0, 1)],
)
def test_a_launcher_that_hides_the_other_gpus(dry_run: DryRun, args: tuple[str, ...], index: int, node: int) -> None:
    plan = dry_run(FOUR_GPUS, "--bind", *args, CUDA_VISIBLE_DEVICES="3", LOCAL_RANK="2")
    (process,) = plan["processes"]
    assert (process["gpu_index"], process["nodes"]) == (index, [node])


def test_without_a_variable_one_gpu_is_not_every_ranks(dry_run: DryRun) -> None:
    one = {**TWO_NODES, "gpus": [{"node": 1}]}
    assert dry_run(one, LOCAL_RANK="2")["skip_reason"]["code"] == "gpu-index-out-of-range"
    assert "entry 2" in dry_run(one, "--bind", LOCAL_RANK="2")["error"]


@pytest.mark.parametrize(
    ("environ", "nodes"),
    [
        ({"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}, [1]),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, [0]),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_LOCALID": "2"}, [1]),
    ],
)
def test_ranks_spread_under_a_launcher(dry_run: DryRun, environ: dict[str, str], nodes: list[int]) -> None:
    plan = dry_run(TWO_NODES, "--bind", "--map", "rank", **environ)
    (process,) = plan["processes"]
    assert (process["nodes"], process["gpu_index"]) == (nodes, None)


@pytest.mark.parametrize(
    ("variable", "value", "args"),
    [
        ("NUMA_LAUNCH_BIND", "1", ("--bind",)),
        ("NUMA_LAUNCH_NUMA_NODES", "1,0,1,0", ("--numa-nodes", "1,0,1,0")),
        ("NUMA_LAUNCH_NUMA_CPUS", "0-1 2 8 9", ("--numa-cpus=0-1", "--numa-cpus=2", "--numa-cpus=8", "--numa-cpus=9")),
        ("NUMA_LAUNCH_MEMORY", "none", ("--memory", "none")),
        ("NUMA_LAUNCH_MAP", "rank", ("--map", "rank")),
        ("NUMA_LAUNCH_VENDOR", "amd", ("--vendor", "amd")),
    ],
)
def test_options_from_the_environment(
    dry_run: DryRun, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, args: tuple[str, ...]
) -> None:
    wanted = dry_run(FOUR_GPUS, *args, "--nproc", "4")
    plain = dry_run(FOUR_GPUS, "--nproc", "4")
    assert dry_run(FOUR_GPUS, "--nproc", "4", **{variable: value}) == wanted
    assert wanted != plain or variable == "NUMA_LAUNCH_MAP"


def test_strict_from_the_environment(dry_run: DryRun) -> None:
    assert dry_run({**FOUR_GPUS, "cpuset": "8-15"}, NUMA_LAUNCH_STRICT="1")["status"] == 1


def test_only_policy_comes_from_the_environment(dry_run: DryRun) -> None:
    plain = dry_run(FOUR_GPUS)
    assert dry_run(FOUR_GPUS, NUMA_LAUNCH_TP="2", NUMA_LAUNCH_RANK="1", NUMA_LAUNCH_NPROC="2") == plain


def test_the_environment_switches_a_fleet_off_also_with_lists(dry_run: DryRun) -> None:
    plan = dry_run(FOUR_GPUS, "--numa-nodes", "0,0,1,1", NUMA_LAUNCH_BIND="0")
    assert (plan["mode"], plan["skip_reason"]["code"]) == ("off", "disabled")
    assert dry_run(FOUR_GPUS, "--bind", NUMA_LAUNCH_BIND="0")["mode"] == "explicit"


@pytest.mark.parametrize(
    ("environ", "codes"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, ["mpi-launcher"]),
        ({"LOCAL_RANK": "x"}, ["rank-unreadable"]),
        ({"CUDA_VISIBLE_DEVICES": "0,GPU-unknown"}, ["visible-device-unknown"]),
    ],
)
def test_warnings(dry_run: DryRun, environ: dict[str, str], codes: list[str]) -> None:
    assert [warning["code"] for warning in dry_run(FOUR_GPUS, "--bind", **environ)["warnings"]] == codes


@pytest.mark.parametrize(
    ("args", "texts"),
    [
        (("--pp", "3"), ["4 workers", "--tp"]),
        (("--nproc", "3", "--tp", "2"), ["--nproc 3", "--tp 2"]),
        (("--nproc", "3", "--pp", "2"), ["3 workers"]),
        (("--map", "rank"), ["--nproc"]),
        (("--bind", "--map", "rank", "--nproc", "2", "--rank", "2"), ["entry 2", "2 ranks"]),
        (("--tp", "0"), ["--tp"]),
        (("--rank", "-1"), ["--rank"]),
        (("--numa-nodes", ""), ["--numa-nodes"]),
        (("--numa-nodes", "0,a"), ["--numa-nodes", "0,a"]),
        (("--numa-nodes", "0-1"), ["--numa-nodes"]),
        (("--numa-nodes", "99999999999999999999"), ["does not exist", "0-1"]),
        (("--numa-cpus", "0-99999999999"), ["--numa-cpus"]),
        (("--device-ids", "-1"), ["--device-ids"]),
        (("--memory", "all"), ["--memory"]),
        (("--vendor", "matrox"), ["--vendor"]),
        (("--kind", "engine"), ["--kind"]),
        (("--tp", "4", "--nnodes", "3", "--dp", "2"), ["--nnodes"]),
        (("--bin",), ["--bin"]),
        (("--cpus", "0"), ["--cpus"]),
        (("--nodes", "0"), ["--nodes"]),
        (("--root", "/nowhere/at/all"), ["/nowhere/at/all"]),
        (("--root", ""), ["no machine"]),
        (("--tp", "1000000000"), ["--tp"]),
        (("--tp", "60000", "--pp", "60000"), ["workers on this host"]),
        (("--numa-nodes", "1" * 30), ["too large"]),
        (("--bind", "--tp", "8", "--nnodes", "2", "--rank", "6"), ["local rank 6", "4 workers"]),
        (("--bind", "--executor", "ray", "--tp", "4", "--rank", "6"), ["local rank 6", "4 workers"]),
        (("--bind", "--device-ids", "0,9", "--tp", "2"), ["--device-ids", "names 9", "4 GPUs"]),
    ],
)
def test_bad_input_is_one_sentence_and_2(dry_run: DryRun, args: tuple[str, ...], texts: list[str]) -> None:
    got = dry_run(FOUR_GPUS, *args)
    assert got["status"] == 2
    assert all(text in got["error"] for text in texts), got["error"]


@pytest.mark.parametrize(
    ("args", "environ"),
    [
        (("--map", "rank", "--nproc", "4", "--rank", "9"), {}),
        (("--map", "rank"), {"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "9"}),
        (("--tp", "8", "--nnodes", "2", "--rank", "6"), {"CUDA_VISIBLE_DEVICES": "0,1,2"}),
        (("--rank", "4"), {}),
    ],
)
def test_a_rank_past_the_end_does_not_fail_the_start_in_auto_mode(
    dry_run: DryRun, args: tuple[str, ...], environ: dict[str, str]
) -> None:
    assert dry_run(FOUR_GPUS, *args, **environ)["skip_reason"]["code"] == "gpu-index-out-of-range"


@pytest.mark.parametrize(
    ("args", "nodes"),
    [
        (("--tp", "2", "--dp", "2", "--dp-rank", "1"), [0, 1]),
        (("--tp", "2", "--dp", "2", "--dp-local", "2"), [0, 0, 1, 1]),
        (("--tp", "2", "--dp", "2", "--dp-local", "2", "--dp-local-rank", "1"), [1, 1]),
        (("--tp", "2", "--dp", "2", "--dp-local", "2", "--executor", "ray"), [0, 0, 1, 1]),
        (("--tp", "2", "--dp", "2", "--dp-local", "2", "--executor", "external_launcher"), [0, 0, 1, 1]),
    ],
)
def test_spread_ranks_count_this_hosts_shards(dry_run: DryRun, args: tuple[str, ...], nodes: list[int]) -> None:
    plan = dry_run(TWO_NODES, "--bind", "--map", "rank", *args)
    assert [p["nodes"][0] for p in plan["processes"] if p["kind"] == "worker"] == nodes


def test_spread_ranks_do_not_look_at_the_visible_gpus(dry_run: DryRun) -> None:
    args = ("--bind", "--map", "rank", "--nproc", "4", "--rank", "3")
    (process,) = dry_run(FOUR_GPUS, *args, CUDA_VISIBLE_DEVICES="1")["processes"]
    assert process["nodes"] == [1]


def test_a_rank_counts_this_hosts_shards_from_0_whatever_the_shard_in_all(dry_run: DryRun) -> None:
    (process,) = dry_run(FOUR_GPUS, "--bind", "--tp", "2", "--dp", "4", "--dp-rank", "1", "--rank", "3")["processes"]
    assert (process["local_rank"], process["dp_local_rank"], process["gpu_index"]) == (1, 1, 3)


def test_an_engine_core_under_a_launcher_that_hides_the_other_gpus(dry_run: DryRun) -> None:
    plan = dry_run(FOUR_GPUS, "--bind", "--kind", "EngineCore", CUDA_VISIBLE_DEVICES="3", LOCAL_RANK="1")
    assert plan["launched"]["nodes"] == [1]


def test_an_assigned_gpu_that_is_not_there_matters_only_where_it_is_used(dry_run: DryRun) -> None:
    plan = dry_run(FOUR_GPUS, "--bind", "--device-ids", "3,9", "--tp", "1")
    assert [process["nodes"] for process in plan["processes"]] == [[1], [1]]


def test_another_host_of_the_same_shards_starts_its_own_from_0(dry_run: DryRun) -> None:
    plan = dry_run(FOUR_GPUS, "--bind", "--nnodes", "2", "--dp", "2", "--dp-rank", "1")
    assert [process["nodes"] for process in plan["processes"]] == [[0, 1], [0], [0], [1], [1]]


def test_a_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = lay(tmp_path / "root", {**FOUR_GPUS, "cpuset": "1-15"})
    assert status_of(["--dry-run", "--root", str(root), "--", "python", "a b.py"]) == 0
    out = capsys.readouterr().out
    assert "mode auto: bound" in out
    for text in (
        "worker 3",
        "--cpunodebind=1 ",
        "--preferred=1 ",
        "--physcpubind=1-7 ",
        "0000:40:00.0",
        "node-narrowed: the CPUs",
    ):
        assert text in out
    assert "COMMAND: python 'a b.py'" in out


def test_the_table_says_why_nothing_is_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["--dry-run", "--root", str(lay(tmp_path / "root", TWO_NODES))]) == 0
    out = capsys.readouterr().out
    assert "unbound" in out
    assert "--numa-nodes" in out
    assert "(no-gpu)" in out
