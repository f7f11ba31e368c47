"""Rounds of a machine that is made up: the bound ranks are fast and alike, of the unbound another straggles each time.

Example: ``made_rounds(ranks=8, rounds=4, steps=200)``.
"""

import random

from numa_launch.bench.model import Mode, RankRound, Round

ORDER: tuple[Mode, ...] = ("unbound", "bound", "bound", "unbound")

MS = 1_000_000
"""Nanoseconds."""


def made_rounds(
    *, ranks: int = 8, rounds: int = 4, steps: int = 200, unbound_ms: float = 5.0, bound_ms: float = 1.0, seed: int = 1
) -> list[Round]:
    """Return as many rounds of each mode; the median step of either mode takes about so many milliseconds."""
    source = random.Random(seed)
    made, now = [], 0
    for number in range(2 * rounds):
        mode = ORDER[number % 4]
        typical = (unbound_ms if mode == "unbound" else bound_ms) * MS * source.lognormvariate(0, 0.02)
        spread = 0.3 if mode == "unbound" else 0.02
        work = [[int(typical * source.lognormvariate(-spread, spread)) for _ in range(ranks)] for _ in range(steps)]
        step_ns = tuple(max(each) + 2000 for each in work)
        made.append(Round(mode, number, step_ns, now, tuple(of_rank(rank, work, mode) for rank in range(ranks))))
        now += sum(step_ns)
    return made


def of_rank(rank: int, work: list[list[int]], mode: Mode) -> RankRound:
    alone = mode == "bound"
    return RankRound(
        rank=rank,
        work_ns=tuple(each[rank] for each in work),
        migrations=0 if alone else 10 + rank,
        run_wait_ns=0 if alone else MS,
        local_share=1.0 if alone else 0.5,
        cpus=frozenset({rank}),
    )
