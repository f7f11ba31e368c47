"""Intervals cover what they say they cover, and what cannot be said is said."""

import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numa_launch.bench.stats import METRIC, Comparison, compare, quantiles, sentence, t_quantile

TRIALS = 2000
RATIO = 4.9

Noise = Callable[[random.Random], float]


def gaussian(source: random.Random) -> float:
    return source.lognormvariate(0, 0.05)


def skewed(source: random.Random) -> float:
    """A round that something disturbs now more, now less: never faster than undisturbed."""
    return 1 + source.gammavariate(2, 0.05)


def of_steps(source: random.Random) -> float:
    """The median of a round's steps, with their long tail, on a machine whose load changes from round to round."""
    steps = [1 + source.expovariate(10) for _ in range(15)]
    return source.lognormvariate(0, 0.03) * statistics.median(steps)


def run(source: random.Random, rounds: int, ratio: float, noise: Noise, drift: float) -> Comparison:
    """Compare made-up rounds run as A B B A, each later one slower by the drift."""
    times: dict[str, list[float]] = {"A": [], "B": []}
    for place in range(2 * rounds):
        mode = "ABBA"[place % 4]
        true = ratio if mode == "A" else 1.0
        times[mode].append(true * noise(source) * math.exp(drift * place))
    return compare(times["A"], times["B"])


@pytest.mark.parametrize("drift", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("noise", [gaussian, skewed, of_steps])
@pytest.mark.parametrize("rounds", [4, 8, 20])
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(rounds: int, noise: Noise, drift: float) -> None:
    source = random.Random(rounds)
    runs = [run(source, rounds, RATIO, noise, drift) for _ in range(TRIALS)]
    held = sum(one.low <= RATIO <= one.high for one in runs if one.low is not None and one.high is not None)
    assert 0.93 <= held / TRIALS <= 0.97


@pytest.mark.parametrize("drift", [0.0, 0.02])
@pytest.mark.parametrize("rounds", [4, 8, 20])
def test_identical_modes_show_no_difference_as_often(rounds: int, drift: float) -> None:
    source = random.Random(rounds)
    verdicts = [run(source, rounds, 1.0, gaussian, drift).verdict for _ in range(TRIALS)]
    assert 0.93 <= verdicts.count("no-difference") / TRIALS <= 0.97
    assert abs(verdicts.count("faster") - verdicts.count("slower")) < TRIALS * 0.03


@pytest.mark.parametrize("rounds", [2, 3])
def test_few_rounds_have_an_interval_that_holds_too(rounds: int) -> None:
    """Without a drift, which so few rounds cannot be rid of."""
    source = random.Random(rounds)
    runs = [run(source, rounds, 1.0, gaussian, 0.0) for _ in range(TRIALS)]
    assert 0.93 <= sum(one.verdict == "too-few-rounds" for one in runs) / TRIALS <= 0.97


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_drift_makes_the_interval_of_few_rounds_wider_never_wrong(rounds: int) -> None:
    source = random.Random(rounds)
    runs = [run(source, rounds, RATIO, gaussian, 0.3) for _ in range(TRIALS)]
    held = sum(one.low <= RATIO <= one.high for one in runs if one.low is not None and one.high is not None)
    assert held / TRIALS >= 0.93


@pytest.mark.parametrize("rounds", [4, 8, 20])
def test_a_linear_drift_leaves_result_and_interval_as_they_are(rounds: int) -> None:
    still = run(random.Random(1), rounds, RATIO, gaussian, 0.0)
    drifting = run(random.Random(1), rounds, RATIO, gaussian, 0.5)
    assert drifting[:3] == pytest.approx(still[:3])


@pytest.mark.parametrize(
    ("freedom", "share", "expected"),
    [  # tables of Student's t, as printed in any textbook: two-sided
        (1, 0.95, 12.706),
        (2, 0.95, 4.303),
        (3, 0.95, 3.182),
        (4, 0.95, 2.776),
        (5, 0.95, 2.571),
        (6, 0.95, 2.447),
        (10, 0.95, 2.228),
        (18, 0.95, 2.101),
        (30, 0.95, 2.042),
        (120, 0.95, 1.980),
        (1, 0.99, 63.657),
        (2, 0.99, 9.925),
        (7, 0.99, 3.499),
        (20, 0.9, 1.725),
        (1, 0.5, 1.0),
    ],
)
def test_quantiles_of_t(freedom: int, share: float, expected: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(expected, abs=5e-4)


def test_many_degrees_of_freedom_come_near_the_normal() -> None:
    assert t_quantile(0.95, 20_000) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=2e-4)


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=300))
def test_quantiles_are_those_of_the_standard_library(values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert quantiles(values) == pytest.approx((cuts[49], cuts[89], cuts[98], max(values)), abs=1e-5)


def test_quantiles_of_next_to_nothing() -> None:
    assert quantiles([]) is None
    assert quantiles([3]) == (3, 3, 3, 3)


# --- What is said


@pytest.mark.parametrize(
    ("unbound", "bound", "verdict", "said"),
    [
        (
            [69.8, 71.0, 69.4, 70.2],
            [14.4, 14.5, 14.1, 14.3],
            "faster",
            "binding is 4.89 times faster here (4.81 to 4.98)",
        ),
        ([100.7, 100.8] * 2, [100.0, 100.1] * 2, "faster", "binding is 1.007 times faster here (1.007 to 1.007)"),
        (
            [70.1, 70.9, 70.4, 70.2],
            [100.1, 101.9, 100.2, 100.3],
            "slower",
            "binding is slower here: do not bind (1.43 times slower, 1.42 to 1.44)",
        ),
        (
            [70.1, 70.9, 70.4, 70.2],
            [70.1, 71.9, 70.2, 70.3],
            "no-difference",
            "no difference that this run can show (bound is 0.98 to 1.01 times as fast)",
        ),
        (
            [5.0] * 4,
            [5.0] * 4,
            "no-difference",
            "no difference that this run can show (bound is 1.0 to 1.0 times as fast)",
        ),
        ([10.0] * 4, [5.0] * 4, "faster", "binding is 2.0 times faster here (2.0 to 2.0)"),
        (
            [70.1, 70.9],
            [70.1, 71.9],
            "too-few-rounds",
            "too few rounds to say whether binding helps: bound is 0.91 to 1.09 times as fast; run 4 or more of each "
            "mode",
        ),
        (
            [70.0, 70.0],
            [56.0],
            "too-few-rounds",
            "too few rounds to say whether binding helps: bound was 1.2 times as fast in the one pair compared, which "
            "may be chance; run 4 or more of each mode",
        ),
        (
            [],
            [1.0],
            "too-few-rounds",
            "this run cannot say whether binding helps: no round of one mode can be compared with one of the other",
        ),
        (
            [0.0] * 3,
            [0.0] * 3,
            "too-few-rounds",
            "this run cannot say whether binding helps: no round of one mode can be compared with one of the other; "
            "3 pairs of rounds left out, as a value is missing or not above zero",
        ),
        (
            [10.0, math.nan, 10.0, 10.0],
            [5.0] * 4,
            "faster",
            "binding is 2.0 times faster here (2.0 to 2.0); 1 pair of rounds left out, as a value is missing or not "
            "above zero",
        ),
    ],
)
def test_one_sentence(unbound: list[float], bound: list[float], verdict: str, said: str) -> None:
    compared = compare(unbound, bound)
    assert (compared.verdict, sentence(compared)) == (verdict, said)


def test_of_a_number_that_should_be_high_the_higher_is_the_better() -> None:
    compared = compare([100, 101, 99, 100], [200, 203, 199, 202], higher_is_better=True)
    assert sentence(compared, METRIC) == "binding is 2.01 times better here (1.99 to 2.03)"
    assert compare([100, 101, 99, 100], [200, 203, 199, 202]).verdict == "slower"


values = st.lists(st.none() | st.floats(allow_nan=True, allow_infinity=True), max_size=12)


@given(values, values)
def test_any_values_give_words_and_an_interval_around_the_ratio(
    unbound: list[float | None], bound: list[float | None]
) -> None:
    compared = compare(unbound, bound)
    assert sentence(compared)
    assert compared.rounds + compared.left_out == min(len(unbound), len(bound))
    if compared.rounds > 1:
        assert compared.low is not None and compared.ratio is not None and compared.high is not None
        assert compared.low <= compared.ratio <= compared.high


times = st.floats(1e-6, 1e6)


@given(st.lists(st.tuples(times, times), min_size=2, max_size=12))
def test_the_modes_changed_round_turn_the_verdict_round(pairs: list[tuple[float, float]]) -> None:
    unbound, bound = zip(*pairs, strict=True)
    there, back = compare(unbound, bound), compare(bound, unbound)
    assert there.ratio is not None and there.low is not None and back.ratio is not None and back.high is not None
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)
    assert compare(bound, unbound, higher_is_better=True) == there
