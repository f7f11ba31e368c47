"""What the user asks for: LaunchConfig.

Example: ``LaunchConfig(tensor_parallel_size=8)`` binds eight workers where that is safe;
``LaunchConfig(numa_bind_nodes=[0, 0, 1, 1])`` binds four to these nodes, whatever it takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from numa_launch.errors import ConfigError
from numa_launch.idsets import MAX_ID, parse_ids

MemoryChoice = Literal["auto", "membind", "preferred", "interleave", "none"]
Executor = Literal["mp", "uni", "ray", "external_launcher"]
DataParallelBackend = Literal["mp", "ray"]
BackendChoice = Literal["auto", "numactl", "builtin"]
Mode = Literal["auto", "explicit", "off"]


KEPT = "_numa_launch_detected"
"""The attribute that holds what automatic detection found."""


class _Kept:
    """Holds what automatic detection found, beside the fields: pickled with the config, but no part of ``vars()``."""

    __slots__ = (KEPT,)

    def __getstate__(self) -> tuple[dict[str, Any], Any]:
        return dict(vars(self)), getattr(self, KEPT, None)

    def __setstate__(self, state: tuple[dict[str, Any], Any]) -> None:
        vars(self).update(state[0])
        if state[1] is not None:
            setattr(self, KEPT, state[1])


@dataclass
class LaunchConfig(_Kept):
    """How to bind a host's workers; made anywhere, as it only checks its own syntax.

    Raises ConfigError, a ValueError that names field and value, for malformed values. Fields:

    numa_bind: None binds where it is safe (mode auto), True binds (explicit), False does not (off).
    numa_bind_nodes: the node of each visible GPU, by gpu index. Given, it means explicit.
    numa_bind_cpus: the CPUs of each visible GPU's worker as kernel CPU lists (``0-3,8``). Given, it means explicit.
    memory_policy: auto is membind in explicit mode and preferred in auto mode; none leaves memory alone.
    strict: raise StrictError instead of leaving a process less bound than planned.
    tensor_parallel_size, pipeline_parallel_size, prefill_context_parallel_size: their product is the number of
        workers of one data-parallel shard, over all its hosts.
    data_parallel_size, data_parallel_size_local: shards in all, and on this host.
    data_parallel_rank, data_parallel_rank_local: the shard this process serves, in all and on this host.
    data_parallel_external_lb: each shard is started on its own, behind a load balancer.
    nnodes: the number of hosts.
    distributed_executor_backend: who starts the workers; auto mode binds for mp and uni.
    data_parallel_backend: who starts the shards; auto mode binds for mp.
    assigned_physical_gpu_ids: the visible GPUs that this process was given; a gpu index then counts these.
    backend: what binds: numactl, or builtin, our own system calls. auto takes numactl where it is on PATH.
    """

    numa_bind: bool | None = None
    numa_bind_nodes: list[int] | None = None
    numa_bind_cpus: list[str] | None = None
    memory_policy: MemoryChoice = "auto"
    strict: bool = False
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_size_local: int = 1
    data_parallel_rank: int = 0
    data_parallel_rank_local: int | None = None
    data_parallel_external_lb: bool = False
    nnodes: int = 1
    distributed_executor_backend: Executor = "mp"
    data_parallel_backend: DataParallelBackend = "mp"
    assigned_physical_gpu_ids: list[int] | None = None
    backend: BackendChoice = "auto"

    def __post_init__(self) -> None:
        for name in ("numa_bind", "strict", "data_parallel_external_lb"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name == "numa_bind" and value is None):
                raise config_error(name, value, "must be True or False" + (", or None" if name == "numa_bind" else ""))
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise config_error(name, value, f"must be one of {', '.join(choices)}")
        for name in SIZES:
            if not is_count(getattr(self, name)) or not 1 <= getattr(self, name) <= MAX_ID:
                raise config_error(name, getattr(self, name), f"must be a number from 1 to {MAX_ID}")
        for name in ("data_parallel_rank", "data_parallel_rank_local"):
            value = getattr(self, name)
            if not is_count(value) and not (name == "data_parallel_rank_local" and value is None):
                raise config_error(name, value, "must be a number from 0 on")
        for name in ("numa_bind_nodes", "assigned_physical_gpu_ids"):
            check_ids(name, getattr(self, name))
        check_cpu_lists(self.numa_bind_cpus)
        nodes, cpus = self.numa_bind_nodes, self.numa_bind_cpus
        if nodes is not None and cpus is not None and len(nodes) != len(cpus):
            raise config_error("numa_bind_cpus", cpus, f"has {len(cpus)} entries but numa_bind_nodes has {len(nodes)}")
        if self.numa_bind is False and (nodes is not None or cpus is not None):
            given = "numa_bind_nodes" if nodes is not None else "numa_bind_cpus"
            raise config_error(given, nodes if nodes is not None else cpus, "contradicts numa_bind=False (--no-bind)")

    @property
    def mode(self) -> Mode:
        """auto, explicit or off; lists alone mean explicit."""
        if self.numa_bind is False:
            return "off"
        if self.numa_bind or self.numa_bind_nodes is not None or self.numa_bind_cpus is not None:
            return "explicit"
        return "auto"

    @property
    def world_size(self) -> int:
        """The workers of one shard over all its hosts; of all shards under external_launcher, which has one."""
        size = self.tensor_parallel_size * self.pipeline_parallel_size * self.prefill_context_parallel_size
        return size * (self.data_parallel_size if self.distributed_executor_backend == "external_launcher" else 1)


CHOICES: Mapping[str, tuple[str, ...]] = {
    "memory_policy": get_args(MemoryChoice),
    "distributed_executor_backend": get_args(Executor),
    "data_parallel_backend": get_args(DataParallelBackend),
    "backend": get_args(BackendChoice),
}

SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
    "data_parallel_size_local",
    "nnodes",
)

OPTIONS: Mapping[str, str] = {
    "numa_bind": "--bind",
    "numa_bind_nodes": "--numa-nodes",
    "numa_bind_cpus": "--numa-cpus",
    "memory_policy": "--memory",
    "tensor_parallel_size": "--tp",
    "pipeline_parallel_size": "--pp",
    "prefill_context_parallel_size": "--pcp",
    "data_parallel_size": "--dp",
    "data_parallel_size_local": "--dp-local",
    "data_parallel_rank": "--dp-rank",
    "data_parallel_rank_local": "--dp-local-rank",
    "data_parallel_external_lb": "--external-lb",
    "nnodes": "--nnodes",
    "distributed_executor_backend": "--executor",
    "data_parallel_backend": "--dp-backend",
    "assigned_physical_gpu_ids": "--device-ids",
    "backend": "--backend",
}
"""Field → the option of the command line that sets it: messages name both."""


def named(field: str) -> str:
    """Return the field for a message, with its option: ``numa_bind_nodes (--numa-nodes)``."""
    return f"{field} ({OPTIONS[field]})" if field in OPTIONS else field


def config_error(field: str, value: object, problem: str) -> ConfigError:
    shown = repr(value)
    return ConfigError(f"{named(field)}: {shown if len(shown) <= 80 else shown[:77] + '...'} {problem}")


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_ids(field: str, ids: object) -> None:
    if ids is None:
        return
    if not isinstance(ids, list | tuple) or not ids or not all(is_count(i) for i in ids):
        raise config_error(field, ids, "must be a list of numbers from 0 on, not empty")


def check_cpu_lists(lists: object) -> None:
    if lists is None:
        return
    if not isinstance(lists, list | tuple) or not lists:
        raise config_error("numa_bind_cpus", lists, "must be a list of CPU lists such as ['0-3', '4-7'], not empty")
    for text in lists:
        if not isinstance(text, str) or not text.strip():
            raise config_error("numa_bind_cpus", text, "is not a CPU list such as 0-3,8")
        try:
            parse_ids(text)
        except ValueError as problem:
            raise ConfigError(f"{named('numa_bind_cpus')}: {problem}") from None


OWN_FIELDS = ("backend",)
"""Fields whose names mean something else in other configs (a backend of collectives, for one)."""


def launch_config(config: Any) -> LaunchConfig:
    """Return the LaunchConfig of any config: itself, or made of an object's ``parallel_config`` with these names.

    What such an object lacks has our default; an executor we do not know (a class, a name of its own) starts its
    workers elsewhere, as Ray does. Raises ConfigError for what is no config, and for malformed values.
    """
    if isinstance(config, LaunchConfig):
        return config
    theirs = getattr(config, "parallel_config", None)
    if theirs is None:
        raise ConfigError(f"a LaunchConfig or an object with a parallel_config is needed, not {type(config).__name__}")
    names = [field.name for field in fields(LaunchConfig) if field.name not in OWN_FIELDS]
    values = {name: getattr(theirs, name) for name in names if hasattr(theirs, name)}
    for name in ("distributed_executor_backend", "data_parallel_backend"):
        if values.get(name, "mp") is None:
            del values[name]
        elif name in values and values[name] not in CHOICES[name]:
            values[name] = "ray"
    return LaunchConfig(**values)
