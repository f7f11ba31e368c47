"""Engines that start their ranks as spawned children, shaped as vLLM and SGLang are, cut down to their starts.

Example: ``start_schedulers(ServerArgs(tp_size=2), lists, queue)``. Each child sends its name and state.
"""

import multiprocessing
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from typing import Any

from numa_launch import LaunchConfig, configure_subprocess
from tests.vm.truth import state

CONTEXT = multiprocessing.get_context("spawn")


def report(queue: "Queue[Any]", name: str) -> None:
    queue.put((name, state()))


@dataclass
class ServerArgs:
    """As SGLang's: one flat object with names of its own, and GPUs counted from a base in steps."""

    tp_size: int = 1
    base_gpu_id: int = 0
    gpu_id_step: int = 1


def start_schedulers(server_args: ServerArgs, cpus: list[str], queue: "Queue[Any]") -> None:
    """Start a scheduler a rank; the number of its GPU is what numa_launch calls its local rank."""
    config = LaunchConfig(tensor_parallel_size=server_args.tp_size, numa_bind_cpus=cpus)
    for tp_rank in range(server_args.tp_size):
        gpu_id = server_args.base_gpu_id + tp_rank * server_args.gpu_id_step
        with configure_subprocess(config, gpu_id):
            CONTEXT.Process(target=report, args=(queue, f"scheduler {tp_rank}")).start()


@dataclass
class ParallelConfig:
    """As vLLM's: our names, numa_bind off unless asked for, no executor where it chooses itself, and other names."""

    numa_bind: bool = False
    numa_bind_nodes: list[int] | None = None
    numa_bind_cpus: list[str] | None = None
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_size_local: int = 1
    data_parallel_rank: int = 0
    data_parallel_rank_local: int | None = None
    data_parallel_backend: str = "mp"
    distributed_executor_backend: Any = None
    all2all_backend: str = "naive"
    backend: str = "nccl"


@dataclass
class VllmConfig:
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)


def start_engines(config: VllmConfig, queue: "Queue[Any]") -> None:
    """Start an EngineCore a local shard, which starts its own workers."""
    for shard in range(config.parallel_config.data_parallel_size_local):
        with configure_subprocess(config, 0, shard, process_kind="EngineCore"):
            CONTEXT.Process(target=engine_core, args=(queue, config, shard)).start()


def engine_core(queue: "Queue[Any]", config: VllmConfig, shard: int) -> None:
    report(queue, f"EngineCore {shard}")
    for rank in range(config.parallel_config.tensor_parallel_size):
        with configure_subprocess(config, rank, shard):
            CONTEXT.Process(target=report, args=(queue, f"worker {shard}.{rank}")).start()
