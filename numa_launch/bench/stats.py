"""Whether binding makes a difference, from a few rounds of both modes: a ratio, its 95 % interval, and one sentence.

Example: ``sentence(compare([70.1, 70.9, 70.4, 70.2], [14.2, 14.1, 14.0, 14.3]))`` is
"binding is 5.0 times faster here (4.8 to 5.1)".

A round is one observation, as its steps depend on each other. Rounds run in the order A B B A, and round i of one
mode is compared with round i of the other: on the log scale, where a ratio is a difference. The interval is Student's
t of these differences, which covers what it says for few rounds too; a percentile bootstrap does not.
"""

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

Verdict = Literal["faster", "slower", "no-difference", "too-few-rounds"]

ENOUGH = 4
"""Pairs of rounds from which an interval that holds no difference is called that, and not too few rounds."""

CONFIDENCE = 0.95

FINEST = 1e-4
"""The least difference between ratios that is shown."""


class Words(NamedTuple):
    """What is said of a mode that wins, of one that loses, and of one that does as well."""

    better: str
    worse: str
    as_such: str


SPEED = Words("faster", "slower", "fast")
METRIC = Words("better", "worse", "good")
"""Of a number that is not known to be a speed."""


class Quantiles(NamedTuple):
    """Quantiles of a sample, in its unit."""

    p50: float
    p90: float
    p99: float
    max: float


class Comparison(NamedTuple):
    """How many times faster (or, of a number where higher is better, how many times higher) bound is than unbound."""

    ratio: float | None
    """None: no pair of rounds can be compared."""
    low: float | None
    high: float | None
    """The 95 % interval of the ratio; None: fewer than two pairs, which have no spread."""
    rounds: int
    """Pairs of rounds that were compared."""
    left_out: int
    """Pairs that were not, because a value is missing, not finite, or not above zero."""
    verdict: Verdict


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """Return the quantiles of a sample; None of an empty one."""
    if not values:
        return None
    ordered = sorted(values)
    return Quantiles(quantile(ordered, 0.5), quantile(ordered, 0.9), quantile(ordered, 0.99), ordered[-1])


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, between two of them by linear interpolation (Hyndman and Fan's type 7)."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def compare(
    unbound: Sequence[float | None], bound: Sequence[float | None], *, higher_is_better: bool = False
) -> Comparison:
    """Compare the i-th round of one mode with the i-th of the other; each value is one round's, in the order run.

    The rounds ran as A B B A A B B A: which mode is first changes from pair to pair. A round without its partner is
    not used.
    """
    pairs = list(zip(unbound, bound, strict=False))
    logs = [log_ratio(one, other) for one, other in pairs]
    if higher_is_better:
        logs = [None if log is None else -log for log in logs]
    used = [log for log in logs if log is not None]
    left_out = len(logs) - len(used)
    if len(used) < 2:
        ratio = exp(used[0]) if used else None
        return Comparison(ratio, None, None, len(used), left_out, "too-few-rounds")
    centre, half = interval(logs)
    low, high = exp(centre - half), exp(centre + half)
    return Comparison(exp(centre), low, high, len(used), left_out, verdict_of(low, high, len(used)))


def log_ratio(one: float | None, other: float | None) -> float | None:
    """Return log(one ÷ other), or None where that is not a number."""
    if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)) or min(one, other) <= 0:
        return None
    return math.log(one) - math.log(other)


def exp(log: float) -> float:
    """Return e to that power, kept within what a float holds."""
    return math.exp(max(-700.0, min(700.0, log)))


def interval(logs: Sequence[float | None]) -> tuple[float, float]:
    """Return the mean of at least two differences, and half the width of its 95 % interval.

    A drift that is linear over the run adds to each pair in which unbound ran first what it takes from each in which
    bound did. So the pairs of either order have a mean of their own, and theirs is the result: the analysis of a
    two-period crossover trial (Hills and Armitage 1979), which keeps the drift out of the spread too. Where an order
    has fewer than two pairs, it is the paired t, which a drift only makes wider.
    """
    orders = [[log for log in logs[first::2] if log is not None] for first in (0, 1)]
    if min(map(len, orders)) < 2:
        orders = [[log for log in logs if log is not None]]
    means = [math.fsum(order) / len(order) for order in orders]
    freedom = sum(map(len, orders)) - len(orders)
    squares = math.fsum((log - mean) ** 2 for order, mean in zip(orders, means, strict=True) for log in order)
    error = math.sqrt(squares / freedom * sum(1 / len(order) for order in orders)) / len(orders)
    return math.fsum(means) / len(means), t_quantile(CONFIDENCE, freedom) * error


def t_share(angle: float, freedom: int) -> float:
    """Return the share of Student's t within ±t, where t = sqrt(freedom) · tan(angle).

    Abramowitz and Stegun 26.7.3 and 26.7.4: exact, a finite sum for whole degrees of freedom.
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


@lru_cache
def t_quantile(share: float, freedom: int) -> float:
    """Return the t between whose negative and itself Student's t lies with this probability."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_share(middle, freedom) < share else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def verdict_of(low: float, high: float, pairs: int) -> Verdict:
    if low > 1:
        return "faster"
    if high < 1:
        return "slower"
    return "no-difference" if pairs >= ENOUGH else "too-few-rounds"


def sentence(compared: Comparison, words: Words = SPEED) -> str:
    """Return in one sentence what the rounds say of binding, and what they cannot say."""
    said = finding(compared, words)
    if not compared.left_out:
        return said
    pairs = "1 pair" if compared.left_out == 1 else f"{compared.left_out} pairs"
    return f"{said}; {pairs} of rounds left out, as a value is missing or not above zero"


def finding(compared: Comparison, words: Words) -> str:
    ratio, low, high = compared.ratio, compared.low, compared.high
    if ratio is None:
        return "this run cannot say whether binding helps: no round of one mode can be compared with one of the other"
    if low is None or high is None:
        return (
            f"too few rounds to say whether binding helps: bound was {figures(ratio)[0]} times as {words.as_such} in "
            f"the one pair compared, which may be chance; run {ENOUGH} or more of each mode"
        )
    if compared.verdict == "faster":
        middle, least, most = figures(ratio, low, high)
        return f"binding is {middle} times {words.better} here ({least} to {most})"
    if compared.verdict == "slower":
        middle, least, most = figures(1 / ratio, 1 / high, 1 / low)
        return f"binding is {words.worse} here: do not bind ({middle} times {words.worse}, {least} to {most})"
    least, most = figures(low, high)
    between = f"bound is {least} to {most} times as {words.as_such}"
    if compared.verdict == "no-difference":
        return f"no difference that this run can show ({between})"
    return f"too few rounds to say whether binding helps: {between}; run {ENOUGH} or more of each mode"


def figures(*ratios: float) -> list[str]:
    """Return ratios with as many decimals as it takes to tell them from each other, from 1 and from 0."""
    apart = [abs(one - other) for one, other in itertools.combinations({0.0, 1.0, *ratios}, 2)]
    decimals = max([1, *(math.ceil(-math.log10(gap)) for gap in apart if gap > FINEST)])
    return [f"{ratio:.{decimals}f}" if ratio < 1000 else "over 1000" for ratio in ratios]
