"""The options that say what to bind and how, as click parses them.

Example: ``--numa-nodes 0,0,1,1 --tp 4`` becomes ``Options(numa_nodes=[0, 0, 1, 1], tp=4, …)``.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from numa_launch.config import CHOICES
from numa_launch.idsets import MAX_ID, shortened
from numa_launch.machine.vendors import VENDORS
from numa_launch.plan.model import Kind

F = TypeVar("F", bound=Callable[..., Any])


class Options(NamedTuple):
    """What the command line and the environment say; None is not said."""

    bind: bool | None
    bind_from_environment: bool
    numa_nodes: list[int] | None
    numa_cpus: tuple[str, ...]
    memory: str
    strict: bool
    map_by: str
    tp: int | None
    pp: int
    pcp: int
    dp: int
    dp_local: int
    dp_rank: int
    dp_local_rank: int | None
    nnodes: int
    executor: str
    dp_backend: str
    external_lb: bool
    device_ids: list[int] | None
    vendor: str | None
    backend: str
    rank: int | None
    kind: Kind | None
    nproc: int | None
    root: str | None
    dry_run: bool
    as_json: bool
    svg: str | None = None
    report: bool = False
    no_prefix: bool = False
    log_dir: str | None = None
    grace: float | None = None


class Ids(click.ParamType[list[int]]):
    """Numbers separated by commas, in the order given."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.removeprefix("-").isascii() and part.removeprefix("-").isdigit() for part in parts):
            self.fail(f"{shortened(str(value))} is not a list of numbers such as 0,0,1,1", param, ctx)
        if any(len(part) > 20 for part in parts):
            self.fail(f"{shortened(str(value))} has a number that is too large", param, ctx)
        return [int(part) for part in parts]


class Seconds(click.FloatRange):
    """A time to wait; ``nan`` is none."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0, max=1e6)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


AT_LEAST_1 = click.IntRange(min=1, max=MAX_ID)
AT_LEAST_0 = click.IntRange(min=0, max=MAX_ID)


def choice(field: str) -> click.Choice[str]:
    return click.Choice(CHOICES[field])


def svg_option(text: str) -> Callable[[F], F]:
    """Return what adds ``--svg`` to a click command."""
    return click.option("--svg", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True), help=text)


def vendor_option(function: F) -> F:
    """Add ``--vendor`` to a click command."""
    return click.option(
        "--vendor",
        type=click.Choice(list(VENDORS)),
        envvar="NUMA_LAUNCH_VENDOR",
        help="Whose GPUs count.  [default: the first of these that the host has]",
    )(function)


PLAN_OPTIONS: list[Callable[[F], F]] = [
    click.option(
        "--bind/--no-bind",
        default=None,
        envvar="NUMA_LAUNCH_BIND",
        help="Bind whatever it takes, or not at all. Neither: bind where it is safe, and say why where it is not.",
    ),
    click.option(
        "--numa-nodes",
        type=Ids(),
        envvar="NUMA_LAUNCH_NUMA_NODES",
        metavar="0,0,1,1",
        help="The node of each visible GPU. Implies --bind.",
    ),
    click.option(
        "--numa-cpus",
        multiple=True,
        envvar="NUMA_LAUNCH_NUMA_CPUS",
        metavar="0-3,8",
        help="The CPUs of a visible GPU's worker; once for each GPU. Implies --bind.",
    ),
    click.option(
        "--memory",
        type=choice("memory_policy"),
        default="auto",
        envvar="NUMA_LAUNCH_MEMORY",
        help="Memory policy. auto: membind with --bind or lists, else preferred.",
    ),
    click.option(
        "--strict", is_flag=True, envvar="NUMA_LAUNCH_STRICT", help="Fail (1) instead of binding less than planned."
    ),
    click.option(
        "--map",
        "map_by",
        type=click.Choice(["gpu", "rank"]),
        default="gpu",
        envvar="NUMA_LAUNCH_MAP",
        help="gpu: the node of the rank's GPU. rank: spread the ranks over the nodes, for hosts without GPUs.",
    ),
    click.option("--tp", type=AT_LEAST_1, help="Tensor-parallel size.  [default: all visible GPUs in use]"),
    click.option("--pp", type=AT_LEAST_1, default=1, help="Pipeline-parallel size."),
    click.option("--pcp", type=AT_LEAST_1, default=1, help="Prefill-context-parallel size."),
    click.option("--dp", type=AT_LEAST_1, default=1, help="Data-parallel size: shards in all."),
    click.option("--dp-local", type=AT_LEAST_1, default=1, help="Shards on this host."),
    click.option("--dp-rank", type=AT_LEAST_0, default=0, help="The shard's number in all."),
    click.option("--dp-local-rank", type=AT_LEAST_0, help="The shard's number on this host."),
    click.option("--nnodes", type=AT_LEAST_1, default=1, help="Hosts in all."),
    click.option("--executor", type=choice("distributed_executor_backend"), default="mp", help="Who starts workers."),
    click.option("--dp-backend", type=choice("data_parallel_backend"), default="mp", help="Who starts shards."),
    click.option("--external-lb", is_flag=True, help="Shards are started one by one behind a load balancer."),
    click.option("--device-ids", type=Ids(), metavar="2,3", help="The visible GPUs that are this command's."),
    vendor_option,
    click.option(
        "--backend",
        type=choice("backend"),
        default="auto",
        envvar="NUMA_LAUNCH_BACKEND",
        help="What binds: numactl, or system calls of our own. auto: numactl where it is on PATH.",
    ),
    click.option("--rank", type=AT_LEAST_0, help="Local rank.  [default: from LOCAL_RANK, SLURM_LOCALID, ...]"),
    click.option(
        "--kind",
        type=click.Choice(["worker", "EngineCore"]),
        help="What COMMAND is.  [default: a worker where there is a rank, else an EngineCore over all visible GPUs]",
    ),
    click.option("--nproc", type=AT_LEAST_1, help="Copies of COMMAND on this host: ranks 0, 1, ..., each bound."),
]
"""What is to be planned, and for whom."""

DRY_RUN = click.option("--dry-run", is_flag=True, help="Print each process's numactl arguments and why; run nothing.")
SHOW_OPTIONS: list[Callable[[F], F]] = [
    click.option("--root", metavar="DIR|FILE", help="With --dry-run: plan for the machine captured in DIR or FILE."),
    click.option("--json", "as_json", is_flag=True, help="With --dry-run: print JSON."),
    svg_option("With --dry-run: also draw the machine, each worker on its node, into FILE."),
]


NPROC_OPTIONS: list[Callable[[F], F]] = [
    click.option(
        "--report", is_flag=True, help="With --nproc: print what the kernel shows of each process once it is bound."
    ),
    click.option(
        "--no-prefix", is_flag=True, help="With --nproc: pass output on as it comes, without [RANK] before lines."
    ),
    click.option(
        "--log-dir",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="With --nproc: also keep the output of each rank, in DIR/rank-0.out, DIR/rank-0.err, ...",
    ),
    click.option("--grace", type=Seconds(), help="With --nproc: time to end in, before SIGKILL.  [default: 30]"),
]
"""How to run the copies that ``--nproc`` starts."""

NPROC_ONLY = ("--report", "--no-prefix", "--log-dir", "--grace")


def options_of(ctx: click.Context, **values: Any) -> Options:
    """Return what click parsed, and whether it is the environment that says --bind or --no-bind."""
    from_environment = ctx.get_parameter_source("bind") is click.core.ParameterSource.ENVIRONMENT
    return Options(**values, bind_from_environment=from_environment)


def plan_options(function: F) -> F:
    """Add the options that say what to plan to a click command."""
    for option in reversed(PLAN_OPTIONS):
        function = option(function)
    return function


def launch_options(function: F) -> F:
    """Add all options of a run to a click command."""
    for option in reversed([*NPROC_OPTIONS, *SHOW_OPTIONS]):
        function = option(function)
    return DRY_RUN(plan_options(function))
