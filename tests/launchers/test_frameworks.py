"""Under frameworks' launchers: Hugging Face accelerate, Dask, and engines that spawn their ranks themselves."""

import importlib.util
import json
import sys
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import pytest

from numa_launch.idsets import parse_ids
from tests.host import ALL_ALLOWED, BOUND_TO_A, BOUND_TO_B, CPU_A, CPU_B, needs_memory_policy
from tests.launchers.engines import CONTEXT, ParallelConfig, ServerArgs, VllmConfig, start_engines, start_schedulers
from tests.launchers.started import HOW, NUMA_LAUNCH, ROOT, SCRIPTS, needs_two_cpus, on_two_nodes, rank, started
from tests.live import needs_namespaces

ACCELERATE = SCRIPTS / "accelerate"
LAUNCH = [ACCELERATE, "launch", "--no_python", "--num_machines", "1", "--main_process_port", "0", "--num_processes"]

needs_accelerate = pytest.mark.skipif(not ACCELERATE.is_file(), reason=f"accelerate is missing: {HOW}")


@needs_accelerate
@needs_two_cpus
def test_accelerate(tmp_path: Path) -> None:
    environ = {"NUMA_LAUNCH_NUMA_CPUS": f"{CPU_B} {CPU_A}"}
    done = started(tmp_path, *LAUNCH, 2, "--multi_gpu", NUMA_LAUNCH, "--", *rank(tmp_path, "torch"), env=environ)
    assert done.status == 0, done.stderr
    assert done.cpus == [str(CPU_B), str(CPU_A)]
    assert done.collective == [(0, 2, 3), (1, 2, 3)]
    again = tmp_path / "again"
    again.mkdir()
    twice = started(again, *LAUNCH, 2, "--multi_gpu", "--", NUMA_LAUNCH, "--", *rank(again), env=environ)
    assert twice.cpus == done.cpus


@needs_accelerate
def test_accelerate_with_one_process_sets_no_rank_and_needs_the_dashes_twice(tmp_path: Path) -> None:
    line = [*LAUNCH, 1, "--cpu"]
    once = started(tmp_path, *line, NUMA_LAUNCH, "--", "true")
    twice = started(tmp_path, *line, "--", NUMA_LAUNCH, "--", "sh", "-c", "exit 7")
    assert "put one more before numa-launch" in once.stderr
    assert "returned non-zero exit status 7" in twice.stderr


needs_dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason=f"Dask is missing: {HOW}")

ONE_WORKER = """
import json
from distributed import Client, LocalCluster
from tests.vm.truth import state

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, preload=PRELOAD) as cluster:
        with Client(cluster) as client:
            print(json.dumps(client.submit(state).result(timeout=60)))
"""


@needs_dask
@needs_two_cpus
@needs_namespaces
def test_a_dask_worker_with_the_readmes_preload(tmp_path: Path) -> None:
    """Of two GPUs it sees the second, which is on the node of CPU_A."""
    blocks = (ROOT / "README.md").read_text().split("```python\n")[1:]
    preload = tmp_path / "bind.py"
    preload.write_text(next(block.split("```")[0] for block in blocks if "dask_setup" in block))
    program = ONE_WORKER.replace("PRELOAD", repr(str(preload)))
    machine = on_two_nodes(tmp_path / "root")
    done = started(tmp_path, *machine, sys.executable, "-c", program, env={"ZE_AFFINITY_MASK": "1"})
    assert done.status == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["cpus"], seen["threads"]) == (str(CPU_A), [str(CPU_A)])


A, B = (str(CPU_A), BOUND_TO_A), (str(CPU_B), BOUND_TO_B)


def places_of(names: list[str], start: Callable[["Queue[Any]"], None]) -> dict[str, tuple[str, str]]:
    """Return the CPUs and memory policy of each process that was started."""
    queue: Queue[Any] = CONTEXT.Queue()
    start(queue)
    seen = dict(queue.get(timeout=60) for _ in names)
    assert all(state["threads"] == [state["cpus"]] for state in seen.values())
    return {name: (seen[name]["cpus"], seen[name]["policy"]) for name in names}


@needs_two_cpus
@needs_memory_policy
def test_an_engine_with_settings_of_its_own_counts_by_gpu() -> None:
    lists = [str(CPU_A), str(CPU_A), str(CPU_B), str(CPU_B)]
    args = ServerArgs(tp_size=2, base_gpu_id=1, gpu_id_step=2)
    places = places_of(["scheduler 0", "scheduler 1"], lambda queue: start_schedulers(args, lists, queue))
    assert places == {"scheduler 0": A, "scheduler 1": B}


@needs_two_cpus
@needs_memory_policy
def test_an_engine_with_a_config_like_vllms() -> None:
    """Shards of two workers each; the EngineCore of a shard covers the nodes of both."""
    lists = [str(cpu) for cpu in (CPU_A, CPU_B, CPU_B, CPU_A)]
    parallel = ParallelConfig(
        numa_bind=True, numa_bind_cpus=lists, tensor_parallel_size=2, data_parallel_size=2, data_parallel_size_local=2
    )
    workers = {"worker 0.0": A, "worker 0.1": B, "worker 1.0": B, "worker 1.1": A}
    names = ["EngineCore 0", "EngineCore 1", *workers]
    places = places_of(names, lambda queue: start_engines(VllmConfig(parallel), queue))
    assert {name: places[name] for name in workers} == workers
    assert parse_ids(places["EngineCore 0"][0]) >= {CPU_A, CPU_B}


@needs_two_cpus
def test_a_config_like_vllms_that_does_not_ask_for_it_binds_nothing() -> None:
    config = VllmConfig(ParallelConfig(tensor_parallel_size=1))
    places = places_of(["EngineCore 0", "worker 0.0"], lambda queue: start_engines(config, queue))
    assert places == {"EngineCore 0": (ALL_ALLOWED, "default"), "worker 0.0": (ALL_ALLOWED, "default")}
