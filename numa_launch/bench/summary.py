"""What rounds say, as data: step times, ranks, stragglers, placement, and what binding is worth.

Example: ``summarise(rounds)`` is a Summary; ``document(summary)`` is the object that ``--json`` writes.
All times are nanoseconds here, milliseconds in the document.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from numa_launch.bench.model import CommandRound, Mode, RankRound, Round
from numa_launch.bench.stats import METRIC, SPEED, Comparison, Quantiles, Words, compare, quantiles, sentence

SCHEMA = 1

MODES: tuple[Mode, Mode] = ("unbound", "bound")

STEPS_FOR_P99 = 100
"""Steps a round from which its p99 is something else than its slowest step."""


class Counters(NamedTuple):
    """What the kernel counted, over all threads; None: it did not say."""

    migrations_per_s: float | None
    """CPU migrations in a second."""
    run_wait_share: float | None
    """Seconds that threads could run but waited for a CPU, in a second."""
    local_share: float | None
    """Share (0 to 1) of the buffers' pages on their rank's node."""


class RankSummary(NamedTuple):
    """One rank in one mode."""

    rank: int
    work: Quantiles
    """Nanoseconds of its own work in a step, without the barrier."""
    slowest: float | None
    """Share (0 to 1) of the steps in which it was the slowest; None: it ran alone."""
    counters: Counters


class ModeSummary(NamedTuple):
    """All rounds of one mode."""

    mode: Mode
    rounds: int
    steps: int
    step: Quantiles
    """Nanoseconds of a whole step."""
    skew: Quantiles | None
    """Slowest ÷ median rank of each step; None: one rank."""
    straggler_changes: float | None
    """Share (0 to 1) of the steps whose slowest rank is another than the step before; None: one rank or step."""
    counters: Counters
    """Of all ranks together; the pages as the mean of the ranks."""
    ranks: tuple[RankSummary, ...]


class Effect(NamedTuple):
    """What binding does to one quantity, taken once a round."""

    what: str
    unbound: tuple[float | None, ...]
    bound: tuple[float | None, ...]
    """The quantity of each round, in the order run."""
    higher_is_better: bool
    comparison: Comparison
    sentence: str

    @property
    def bound_over_unbound(self) -> tuple[float | None, float | None, float | None]:
        """Bound ÷ unbound, and the two ends of its 95 % interval."""
        ratio, low, high = self.comparison[:3]
        return (ratio, low, high) if self.higher_is_better else (inverse(ratio), inverse(high), inverse(low))


def inverse(ratio: float | None) -> float | None:
    return None if ratio is None else 1 / ratio


class Summary(NamedTuple):
    """A whole measurement."""

    modes: tuple[ModeSummary, ...]
    """Those that have steps."""
    p50: Effect
    p99: Effect
    few_steps: bool
    """A round has too few steps for its p99 to be more than its slowest step."""


class CommandMode(NamedTuple):
    """All runs of a command in one mode."""

    mode: Mode
    rounds: int
    wall_s: Quantiles
    metric: Quantiles | None
    """None: no run printed it."""


class CommandSummary(NamedTuple):
    """A whole measurement of a command."""

    modes: tuple[CommandMode, ...]
    wall: Effect
    metric: Effect | None
    """None: none was printed."""


def summarise(rounds: Iterable[Round]) -> Summary:
    """Return what the rounds say; they may be few, of one mode, or none."""
    ordered = sorted((one for one in rounds if one.step_ns), key=lambda one: one.number)
    modes = tuple(mode_summary(mode, own) for mode in MODES if (own := of_mode(ordered, mode)))
    few = any(len(one.step_ns) < STEPS_FOR_P99 for one in ordered)
    return Summary(modes, step_effect("p50", ordered), step_effect("p99", ordered), few)


def of_mode(rounds: Sequence[Round], mode: Mode) -> list[Round]:
    return [one for one in rounds if one.mode == mode]


def step_effect(name: str, rounds: Sequence[Round]) -> Effect:
    return effect(
        f"step {name}",
        {mode: [getattr(quantiles(one.step_ns), name) for one in of_mode(rounds, mode)] for mode in MODES},
    )


def effect(
    what: str,
    values: Mapping[Mode, Sequence[float | None]],
    *,
    words: Words = SPEED,
    higher_is_better: bool = False,
) -> Effect:
    """Compare a quantity's value in each round of both modes."""
    unbound, bound = tuple(values["unbound"]), tuple(values["bound"])
    compared = compare(unbound, bound, higher_is_better=higher_is_better)
    return Effect(what, unbound, bound, higher_is_better, compared, sentence(compared, words))


def mode_summary(mode: Mode, rounds: Sequence[Round]) -> ModeSummary:
    steps = [ns for one in rounds for ns in one.step_ns]
    slowest = [slowest_ranks(one) for one in rounds]
    shares = slowest_shares(slowest)
    ids = sorted({own.rank for one in rounds for own in one.ranks})
    return ModeSummary(
        mode=mode,
        rounds=len(rounds),
        steps=len(steps),
        step=known(quantiles(steps)),
        skew=quantiles([skew for one in rounds for skew in skews(one)]),
        straggler_changes=changes(slowest),
        counters=counters(rounds, None),
        ranks=tuple(rank_summary(rank, rounds, shares) for rank in ids),
    )


def known(of_sample: Quantiles | None) -> Quantiles:
    """Return the quantiles of a sample that is known to have values, or of which none count."""
    return of_sample or Quantiles(0, 0, 0, 0)


def works_of(one: Round) -> list[tuple[int, ...]]:
    """Return what each rank worked in each step: one tuple a step, in the order of the round's ranks."""
    return list(zip(*(own.work_ns for own in one.ranks), strict=False)) if len(one.ranks) > 1 else []


def skews(one: Round) -> list[float]:
    """Return slowest ÷ median rank of each step that has a median above zero."""
    middles = [(max(works), statistics.median(works)) for works in works_of(one)]
    return [most / middle for most, middle in middles if middle > 0]


def slowest_ranks(one: Round) -> list[int]:
    """Return the rank that worked longest in each step (of equals the first), nothing where one rank ran alone."""
    ranks = [own.rank for own in one.ranks]
    return [ranks[works.index(max(works))] for works in works_of(one)]


def slowest_shares(slowest: Sequence[Sequence[int]]) -> dict[int, float] | None:
    """Return in which share of all steps each rank was the slowest, None where none can be."""
    counts = Counter(rank for each in slowest for rank in each)
    return {rank: count / counts.total() for rank, count in counts.items()} if counts else None


def changes(slowest: Sequence[Sequence[int]]) -> float | None:
    """Return in which share of the steps another rank is slowest than in the step before in the same round."""
    changed = [one != other for each in slowest for one, other in itertools.pairwise(each)]
    return sum(changed) / len(changed) if changed else None


def rank_summary(rank: int, rounds: Sequence[Round], shares: dict[int, float] | None) -> RankSummary:
    work = [ns for one in rounds for own in one.ranks if own.rank == rank for ns in own.work_ns]
    slowest = None if shares is None else shares.get(rank, 0.0)
    return RankSummary(rank, known(quantiles(work)), slowest, counters(rounds, rank))


def counters(rounds: Sequence[Round], rank: int | None) -> Counters:
    """Return the counters of a rank, or of all together; a round in which one of them is unknown does not count."""
    own = [(one, [each for each in one.ranks if rank in (None, each.rank)]) for one in rounds]
    waits = per_second(own, lambda each: each.run_wait_ns)
    shares = [each.local_share for _, ranks in own for each in ranks if each.local_share is not None]
    return Counters(
        migrations_per_s=per_second(own, lambda each: each.migrations),
        run_wait_share=None if waits is None else waits / 1e9,
        local_share=statistics.fmean(shares) if shares else None,
    )


def per_second(
    rounds: Iterable[tuple[Round, Sequence[RankRound]]], count: Callable[[RankRound], int | None]
) -> float | None:
    """Return how much of it a second of steps has, summed over the ranks."""
    total = ns = 0
    for one, ranks in rounds:
        counts = [count(each) for each in ranks]
        said = [each for each in counts if each is not None]
        if said and len(said) == len(counts):
            total += sum(said)
            ns += sum(one.step_ns)
    return total / (ns / 1e9) if ns else None


def summarise_command(rounds: Iterable[CommandRound], *, higher_is_better: bool = False) -> CommandSummary:
    """Return what the runs of a command say; the metric, where one was printed, is better when higher or lower."""
    ordered = sorted(rounds, key=lambda one: one.number)
    own = {mode: [one for one in ordered if one.mode == mode] for mode in MODES}
    metrics = {mode: [finite(one.metric) for one in own[mode]] for mode in MODES}
    metric = None
    if any(value is not None for each in metrics.values() for value in each):
        metric = effect("metric", metrics, words=METRIC, higher_is_better=higher_is_better)
    return CommandSummary(
        modes=tuple(
            CommandMode(
                mode,
                len(own[mode]),
                known(quantiles([one.wall_s for one in own[mode]])),
                quantiles([value for value in metrics[mode] if value is not None]),
            )
            for mode in MODES
            if own[mode]
        ),
        wall=effect("wall time", {mode: [one.wall_s for one in own[mode]] for mode in MODES}),
        metric=metric,
    )


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# --- As an object of schema 1


def document(summary: Summary) -> dict[str, Any]:
    """Return the measurement as one object of schema 1."""
    return {
        "schema": SCHEMA,
        "modes": [mode_json(each) for each in summary.modes],
        "effects": [effect_json(effect, "ms", 1e-6) for effect in (summary.p50, summary.p99)],
        "few_steps": summary.few_steps,
    }


def command_document(summary: CommandSummary) -> dict[str, Any]:
    """Return the measurement of a command as one object of schema 1."""
    effects = [effect_json(summary.wall, "s", 1)]
    if summary.metric:
        effects.append(effect_json(summary.metric, "", 1))
    return {
        "schema": SCHEMA,
        "modes": [
            {
                "mode": each.mode,
                "rounds": each.rounds,
                "wall_s": quantiles_json(each.wall_s, 1),
                "metric": quantiles_json(each.metric, 1),
            }
            for each in summary.modes
        ],
        "effects": effects,
    }


def mode_json(each: ModeSummary) -> dict[str, Any]:
    return {
        "mode": each.mode,
        "rounds": each.rounds,
        "steps": each.steps,
        "step_ms": quantiles_json(each.step, 1e-6),
        "skew": quantiles_json(each.skew, 1),
        "straggler_changes": each.straggler_changes,
        **each.counters._asdict(),
        "ranks": [
            {
                "rank": own.rank,
                "work_ms": quantiles_json(own.work, 1e-6),
                "slowest": own.slowest,
                **own.counters._asdict(),
            }
            for own in each.ranks
        ],
    }


def quantiles_json(of_sample: Quantiles | None, unit: float) -> dict[str, float] | None:
    if of_sample is None:
        return None
    return {name: value * unit for name, value in of_sample._asdict().items()}


def effect_json(effect: Effect, unit: str, scale: float) -> dict[str, Any]:
    """Return a comparison both ways round: how many times faster (or better) bound is, and bound ÷ unbound."""
    ends = ("ratio", "low", "high")
    return {
        "what": effect.what,
        "verdict": effect.comparison.verdict,
        "sentence": effect.sentence,
        "times_faster": dict(zip(ends, effect.comparison, strict=False)),
        "bound_over_unbound": dict(zip(ends, effect.bound_over_unbound, strict=True)),
        "higher_is_better": effect.higher_is_better,
        "pairs": effect.comparison.rounds,
        "pairs_left_out": effect.comparison.left_out,
        "unit": unit,
        "unbound": [None if value is None else value * scale for value in effect.unbound],
        "bound": [None if value is None else value * scale for value in effect.bound],
    }
