"""From options and environment to the plan: which processes are meant, and which of them COMMAND is.

Example: ``request(options, machine, {"LOCAL_RANK": "3"})`` asks about worker 3 alone, which COMMAND then is.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from numa_launch.apply.backend import Backend, choose
from numa_launch.apply.command import find_numactl
from numa_launch.cli.options import Options
from numa_launch.cli.ranks import local_rank, local_size, mpi_variable
from numa_launch.config import LaunchConfig
from numa_launch.errors import ConfigError
from numa_launch.idsets import MAX_ID
from numa_launch.machine.model import Machine
from numa_launch.plan.model import Circumstances, Process
from numa_launch.plan.ranks import counts_shards, local_processes, local_shards, nnodes_within_dp, workers_per_shard
from numa_launch.reasons import Note, note


class Request(NamedTuple):
    """What a command line asks for.

    `processes` are those a dry run shows; `launched` is what COMMAND becomes, None where it cannot be run so.
    """

    config: LaunchConfig
    processes: list[Process]
    launched: Process | None
    spread_ranks: int | None
    switched_off: str | None
    warnings: tuple[Note, ...]


def request(options: Options, machine: Machine, environ: Mapping[str, str]) -> Request:
    """Return what is asked for on this machine; raises ConfigError where the options contradict each other or it."""
    rank, warnings = (options.rank, ()) if options.rank is not None else local_rank(environ)
    config, switched_off = config_of(options)
    spread = spreads(options)
    if spread:
        config = replace(config, data_parallel_rank=0)  # ranks spread over a host are this host's alone
    spread_ranks = ranks_to_spread(options, config, environ) if spread else None
    if options.tp is None:
        workers = spread_ranks or options.nproc or default_workers(config, machine)
        config = replace(config, tensor_parallel_size=deduced_tp(config, workers, exact=options.dry_run))
    elif options.nproc is not None:
        check_agreement(config, options.nproc)
    mpi = mpi_variable(environ)
    if mpi and config.mode == "explicit" and not switched_off:
        warnings += (note("mpi-launcher", variable=mpi),)
    return Request(
        config=config,
        processes=shown(options, config, machine, rank),
        launched=launched(options, config, machine, rank),
        spread_ranks=spread_ranks,
        switched_off=switched_off,
        warnings=warnings,
    )


def spreads(options: Options) -> bool:
    """Return whether ranks are spread over the nodes: lists say where each goes."""
    return options.map_by == "rank" and not options.numa_nodes and not options.numa_cpus


def config_of(options: Options) -> tuple[LaunchConfig, str | None]:
    """Return what the options ask for as a config, and which variable switches binding off."""
    switched_off = options.bind is False and options.bind_from_environment
    config = LaunchConfig(
        numa_bind=None if switched_off else options.bind,
        numa_bind_nodes=options.numa_nodes,
        numa_bind_cpus=list(options.numa_cpus) or None,
        memory_policy=options.memory,  # type: ignore[arg-type]
        strict=options.strict,
        tensor_parallel_size=options.tp or 1,
        pipeline_parallel_size=options.pp,
        prefill_context_parallel_size=options.pcp,
        data_parallel_size=options.dp,
        data_parallel_size_local=options.dp_local,
        data_parallel_rank=options.dp_rank,
        data_parallel_rank_local=options.dp_local_rank,
        data_parallel_external_lb=options.external_lb,
        nnodes=options.nnodes,
        distributed_executor_backend=options.executor,  # type: ignore[arg-type]
        data_parallel_backend=options.dp_backend,  # type: ignore[arg-type]
        assigned_physical_gpu_ids=options.device_ids,
        backend=options.backend,  # type: ignore[arg-type]
    )
    return config, "NUMA_LAUNCH_BIND=0" if switched_off else None


def circumstances_of(options: Options, asked: Request, backend: Backend | None) -> Circumstances:
    """Return what the live host adds to a plan, nothing but the request for a captured one."""
    return Circumstances(
        numactl_missing=backend is None and options.root is None,
        switched_off=asked.switched_off,
        spread_ranks=asked.spread_ranks,
    )


def backend_for(asked: Request, environ: Mapping[str, str]) -> Backend | None:
    """Return the backend that binds here, None where none may serve."""
    return choose(asked.config.backend, lambda: find_numactl(environ), sys.executable)


def worker_count(config: LaunchConfig) -> int:
    return sum(process.kind == "worker" for process in local_processes(config))


def ranks_to_spread(options: Options, config: LaunchConfig, environ: Mapping[str, str]) -> int:
    """Return the number of ranks that ``--map rank`` spreads."""
    one_shard = config.distributed_executor_backend == "external_launcher"
    planned = workers_per_shard(config) * (1 if one_shard else config.data_parallel_size_local)
    known = options.nproc or (planned if options.tp else local_size(environ))
    if known and known > MAX_ID:
        raise ConfigError(f"--map rank cannot spread {known} ranks: at most {MAX_ID}")
    if not known:
        raise ConfigError(
            "--map rank needs the number of ranks on this host: pass --nproc or --tp, or start it under a launcher "
            "that sets LOCAL_WORLD_SIZE"
        )
    return known


def default_workers(config: LaunchConfig, machine: Machine) -> int:
    """Return one worker per visible GPU (of --device-ids where given), without GPUs one per entry of the lists."""
    lists = config.assigned_physical_gpu_ids or machine.visible or config.numa_bind_nodes or config.numa_bind_cpus
    return len(lists or ())


def deduced_tp(config: LaunchConfig, workers: int, exact: bool) -> int:
    """Return the tensor-parallel size that makes this many workers on this host, at least 1."""
    external = config.distributed_executor_backend == "external_launcher"
    shards = config.data_parallel_size if external else config.data_parallel_size_local
    others = config.pipeline_parallel_size * config.prefill_context_parallel_size * shards
    of_all_hosts = workers * nnodes_within_dp(config)
    if of_all_hosts % others and exact:
        raise ConfigError(
            f"{workers} workers do not divide by the {others} that --pp, --pcp and the local shards make: pass --tp"
        )
    return max(1, of_all_hosts // others)


def check_agreement(config: LaunchConfig, nproc: int) -> None:
    if nproc != worker_count(config):
        raise ConfigError(
            f"--nproc {nproc} and --tp {config.tensor_parallel_size} do not agree: --tp and the other sizes make "
            f"{worker_count(config)} workers on this host, so leave one out"
        )


def of_rank(config: LaunchConfig, machine: Machine, rank: int) -> Process:
    """Return the worker that a local rank is: number rank mod w of shard rank div w, for w workers a shard.

    Where a gpu index does not tell shards apart, a rank past the last worker would so get another worker's GPU:
    explicit mode raises ConfigError for it, and auto mode takes it as an index of its own.
    """
    takes_only_gpu = machine.only_gpu_left
    beyond, local = divmod(rank, workers_per_shard(config))
    one_shard = (
        config.distributed_executor_backend == "external_launcher" or config.data_parallel_rank_local is not None
    )
    too_far = not counts_shards(config) and not one_shard and beyond >= config.data_parallel_size_local
    if too_far and config.mode == "explicit":
        raise ConfigError(
            f"local rank {rank} is past the last of the {worker_count(config)} workers that the parallel sizes make "
            "on this host: lower --rank, or raise --tp or --dp-local"
        )
    if one_shard or too_far:
        return Process("worker", rank, local_shards(config)[0], takes_only_gpu=takes_only_gpu)
    return Process("worker", local, beyond, takes_only_gpu=takes_only_gpu)


def shown(options: Options, config: LaunchConfig, machine: Machine, rank: int | None) -> list[Process]:
    if rank is not None and options.kind != "EngineCore":
        return [of_rank(config, machine, rank)]
    return [process for process in local_processes(config) if options.kind in (None, process.kind)]


def launched(options: Options, config: LaunchConfig, machine: Machine, rank: int | None) -> Process | None:
    if options.nproc is not None or (options.kind == "worker" and rank is None):
        return None
    if options.kind == "EngineCore":
        if rank is not None:
            shard = of_rank(config, machine, rank).dp_local_rank
            return Process("EngineCore", dp_local_rank=shard, over_all=machine.only_gpu_left)
        shards = local_shards(config)
        return Process("EngineCore", dp_local_rank=shards[0], over_all=len(shards) > 1)
    if rank is not None:
        return of_rank(config, machine, rank)
    return Process("EngineCore", dp_local_rank=0, over_all=True)
