"""What a measurement is made of: rounds, and what each rank measured in them."""

from array import array
from typing import Literal, NamedTuple

Mode = Literal["unbound", "bound"]


class RankRound(NamedTuple):
    """What one rank measured in one round; times in nanoseconds of CLOCK_MONOTONIC, one entry a step."""

    rank: int
    work_ns: "tuple[int, ...] | array[int]"  # its own work of each step, without the barrier
    migrations: int | None  # CPU migrations of all its threads during the round; None: the kernel does not say
    run_wait_ns: int | None  # time it could run but waited for a CPU, all threads
    local_share: float | None  # share (0 to 1) of its buffer's pages on the node it should be on; None: unknown
    cpus: frozenset[int]  # the CPUs it was allowed to run on


class Round(NamedTuple):
    """One round of one mode; warm-up rounds are not kept as such."""

    mode: Mode
    number: int  # in the order run, from 0
    step_ns: "tuple[int, ...] | array[int]"  # whole steps, the barrier included, as rank 0 sees them
    began_ns: int
    ranks: tuple[RankRound, ...]


class CommandRound(NamedTuple):
    """One run of the user's own command."""

    mode: Mode
    number: int
    wall_s: float
    metric: float | None  # the number that it printed, where one was asked for
