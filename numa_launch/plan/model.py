"""The plan as data: the processes asked about, and for each what to set and why.

Example: ``Binding(Process("worker", 1), gpu_index=1, nodes=(3,), cpus=..., by_node=True, memory_policy="membind",
memory_nodes=(3,))`` becomes ``numactl --cpunodebind=3 --membind=3``.
"""

from typing import Literal, NamedTuple

from numa_launch.config import Mode
from numa_launch.machine.gpu import Gpu
from numa_launch.reasons import Note

Kind = Literal["EngineCore", "worker"]
MemoryPolicy = Literal["membind", "preferred", "preferred-many", "interleave"]


class Process(NamedTuple):
    """A process to plan for.

    `dp_local_rank` is its shard on this host, None: the config's. `over_all` makes an EngineCore span all visible GPUs
    instead of its shard's; `takes_only_gpu` gives a worker the one GPU that its launcher left visible, whatever its
    rank.
    """

    kind: Kind
    local_rank: int = 0
    dp_local_rank: int | None = None
    over_all: bool = False
    takes_only_gpu: bool = False


class Binding(NamedTuple):
    """What to set on one process; without `cpus` it stays unbound.

    `cpus` are all CPUs it will have. `by_node` means that they are all online CPUs of its nodes, so that numactl may
    be given the nodes. `memory_policy` None leaves memory alone. `reasons` say what differs from the plain rule.
    """

    kind: Kind
    local_rank: int
    dp_local_rank: int
    gpu_index: int | None = None
    nodes: tuple[int, ...] = ()
    cpus: frozenset[int] = frozenset()
    by_node: bool = False
    memory_nodes: tuple[int, ...] = ()
    memory_policy: MemoryPolicy | None = None
    reasons: tuple[Note, ...] = ()

    @property
    def bound(self) -> bool:
        return bool(self.cpus)

    @property
    def name(self) -> str:
        """The process in words: ``worker 3 of shard 1``, without a shard where it is the first."""
        rank = "" if self.kind == "EngineCore" else f" {self.local_rank}"
        return f"{self.kind}{rank}" + (f" of shard {self.dp_local_rank}" if self.dp_local_rank else "")


class Plan(NamedTuple):
    """The bindings in the order asked for; `skip_reason` says why a plan in mode auto or off binds nothing."""

    mode: Mode
    skip_reason: Note | None
    gpus: tuple[Gpu, ...]
    processes: tuple[Binding, ...]
    warnings: tuple[Note, ...] = ()

    @property
    def bound_processes(self) -> tuple[Binding, ...]:
        return tuple(process for process in self.processes if process.bound)

    @property
    def bound(self) -> bool:
        return bool(self.bound_processes)


class Circumstances(NamedTuple):
    """What only the live host decides; the defaults fit a captured machine.

    `start_method` other than spawn, `numactl_missing` and `switched_off` (by what) each keep auto mode unbound.
    `spread_ranks` is ``--map rank``: the number of ranks to spread over the nodes, None: by GPU. `binds_itself`: a
    worker asks for its own binding, so it does not matter who started it.
    """

    start_method: str = "spawn"
    numactl_missing: bool = False
    switched_off: str | None = None
    spread_ranks: int | None = None
    binds_itself: bool = False


CAPTURED = Circumstances()
