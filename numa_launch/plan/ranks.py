"""Which GPU a worker has, by its rank and the parallel sizes.

Example: with ``tensor_parallel_size=2, data_parallel_size_local=2`` worker 1 of shard 1 has gpu index 3.
"""

from numa_launch.config import LaunchConfig, config_error
from numa_launch.errors import ConfigError
from numa_launch.idsets import MAX_ID
from numa_launch.plan.model import Process


def nnodes_within_dp(config: LaunchConfig) -> int:
    """Return over how many hosts one shard spreads; raises ConfigError where that is not a whole number."""
    if config.nnodes == 1:
        return 1
    groups = config.data_parallel_size // config.data_parallel_size_local
    if config.data_parallel_external_lb:
        return max(1, config.nnodes // max(1, groups))
    if groups < 1 or config.nnodes % groups:
        raise config_error(
            "nnodes",
            config.nnodes,
            f"does not divide by the {groups} groups of shards that data_parallel_size={config.data_parallel_size} "
            f"and data_parallel_size_local={config.data_parallel_size_local} make",
        )
    return config.nnodes // groups


def workers_per_shard(config: LaunchConfig) -> int:
    """Return how many workers of a shard this host starts."""
    return max(1, config.world_size // nnodes_within_dp(config))


def counts_shards(config: LaunchConfig) -> bool:
    """Return whether a gpu index counts this host's shards; else it is the local rank."""
    placed_elsewhere = (
        config.distributed_executor_backend in ("ray", "external_launcher") or config.data_parallel_backend == "ray"
    )
    return not placed_elsewhere and nnodes_within_dp(config) == 1


def shard_of(config: LaunchConfig, dp_local_rank: int | None) -> int:
    """Return the shard's number on this host, as far as anyone said it."""
    known = (dp_local_rank, config.data_parallel_rank_local, config.data_parallel_rank)
    return next(rank for rank in known if rank is not None)


def gpu_index(config: LaunchConfig, local_rank: int, dp_local_rank: int | None) -> int:
    """Return the gpu index of a worker."""
    if counts_shards(config):
        return local_rank + shard_of(config, dp_local_rank) * config.world_size
    return local_rank


def shard_indices(config: LaunchConfig, dp_local_rank: int | None) -> range | None:
    """Return the gpu indices of a shard's workers, None: all there are."""
    if not counts_shards(config):
        return None
    first = shard_of(config, dp_local_rank) * config.world_size
    return range(first, first + config.world_size)


def spread_indices(config: LaunchConfig, dp_local_rank: int | None) -> range:
    """Return which of the ranks that ``--map rank`` spreads are the shard's workers: it counts this host's alone."""
    workers = workers_per_shard(config)
    first = shard_of(config, dp_local_rank) * workers
    return range(first, first + workers)


def local_shards(config: LaunchConfig) -> list[int]:
    """Return the shards this host starts: the one the config names, or each of several; external_launcher has one."""
    if config.distributed_executor_backend == "external_launcher":
        return [0]
    if config.data_parallel_rank_local is not None:
        return [config.data_parallel_rank_local]
    if config.data_parallel_size_local == 1 and config.nnodes == 1:
        return [config.data_parallel_rank]  # shards of one host that are started one by one
    return list(range(config.data_parallel_size_local))


def local_processes(config: LaunchConfig) -> list[Process]:
    """Return what this host starts: the EngineCores by shard, then the workers by shard and local rank."""
    shards = local_shards(config)
    has_engine = config.distributed_executor_backend != "external_launcher"
    engines = [Process("EngineCore", dp_local_rank=shard) for shard in shards if has_engine]
    ranks = range(workers_per_shard(config))
    if len(shards) * len(ranks) > MAX_ID:
        raise ConfigError(f"the parallel sizes make {len(shards) * len(ranks)} workers on this host: lower them")
    return engines + [Process("worker", rank, shard) for shard in shards for rank in ranks]
