"""What a measurement is summed up to, by hand where that can be, and what no rounds or odd ones give."""

import json
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numa_launch.bench.model import CommandRound, Mode, RankRound, Round
from numa_launch.bench.summary import command_document, document, summarise, summarise_command
from tests.bench.made import made_rounds


def round_of(mode: Mode, number: int, *works: tuple[int, ...], migrations: int | None = 3) -> Round:
    """Return a round whose ranks worked so long in each of its steps, and whose barrier took nothing."""
    ranks = tuple(RankRound(rank, own, migrations, 250, 0.5, frozenset()) for rank, own in enumerate(works))
    return Round(mode, number, tuple(max(each) for each in zip(*works, strict=True)), 0, ranks)


BY_HAND = round_of("unbound", 0, (10, 40, 10, 10), (20, 20, 60, 10), (30, 10, 20, 90))


def test_a_round_by_hand() -> None:
    (mode,) = summarise([BY_HAND]).modes
    assert (mode.rounds, mode.steps) == (1, 4)
    assert tuple(mode.step) == pytest.approx((50, 81, 89.1, 90))
    assert mode.skew is not None
    assert mode.skew[0] == 2.5  # of 30/20, 40/20, 60/20 and 90/10
    assert mode.skew.max == 9
    assert mode.straggler_changes == 1
    assert [rank.slowest for rank in mode.ranks] == [0.25, 0.25, 0.5]
    assert [rank.work.p50 for rank in mode.ranks] == [10, 20, 25]
    assert tuple(mode.counters) == pytest.approx((9 / 220e-9, 750 / 220, 0.5))
    assert tuple(mode.ranks[1].counters) == pytest.approx((3 / 220e-9, 250 / 220, 0.5))


def test_whether_the_straggler_changed_is_not_asked_from_round_to_round() -> None:
    steady = [round_of("bound", number, *((9, 9), (5, 5))[:: 1 - 2 * number]) for number in (0, 1)]
    (mode,) = summarise(steady).modes
    assert mode.straggler_changes == 0
    assert [rank.slowest for rank in mode.ranks] == [0.5, 0.5]


def test_a_rank_alone_has_no_skew_and_is_no_straggler() -> None:
    (mode,) = summarise([round_of("bound", 0, (5, 6, 7))]).modes
    assert (mode.skew, mode.straggler_changes, mode.ranks[0].slowest) == (None, None, None)


def test_a_round_whose_counter_is_unknown_counts_for_no_rate() -> None:
    unknown = round_of("unbound", 1, (100, 100), (50, 50), migrations=None)
    assert summarise([unknown]).modes[0].counters.migrations_per_s is None
    both = summarise([round_of("unbound", 0, (100, 100), (50, 50)), unknown]).modes[0]
    assert both.counters.migrations_per_s == pytest.approx(6 / 200e-9)


def test_a_straggler_that_rotates_is_told_from_ranks_alike() -> None:
    summary = summarise(made_rounds(ranks=8, rounds=4, steps=300))
    unbound, bound = summary.modes
    assert unbound.skew is not None
    assert bound.skew is not None
    assert unbound.skew.p50 > 1.3
    assert bound.skew.p50 < 1.1
    assert unbound.straggler_changes == pytest.approx(7 / 8, abs=0.05)
    assert sum(rank.slowest or 0 for rank in unbound.ranks) == pytest.approx(1)
    assert (summary.p50.comparison.verdict, summary.p99.comparison.verdict) == ("faster", "faster")
    assert not summary.few_steps


def test_rounds_are_compared_in_the_order_run_whatever_order_they_come_in() -> None:
    rounds = made_rounds(steps=100)
    assert summarise(reversed(rounds)) == summarise(rounds)
    assert summarise(rounds).p50.unbound == pytest.approx([5e6] * 4, rel=0.5)


def test_arrays_do_as_well_as_tuples() -> None:
    rounds = made_rounds(ranks=2, steps=20)
    arrays = [
        one._replace(
            step_ns=array("q", one.step_ns),
            ranks=tuple(own._replace(work_ns=array("q", own.work_ns)) for own in one.ranks),
        )
        for one in rounds
    ]
    assert summarise(arrays) == summarise(rounds)


@pytest.mark.parametrize("steps", [99, 100])
def test_few_steps_have_no_p99_of_their_own(steps: int) -> None:
    assert summarise(made_rounds(ranks=1, steps=steps)).few_steps == (steps < 100)


def test_nothing_at_all_is_said_in_words() -> None:
    summary = summarise([])
    assert summary.modes == ()
    assert summary.p50.sentence.startswith("this run cannot say whether binding helps")
    assert summarise([Round("bound", 0, (), 0, ())]) == summary
    assert summarise_command([]).wall.comparison.verdict == "too-few-rounds"


def test_one_mode_only_as_after_an_interrupt() -> None:
    summary = summarise([one for one in made_rounds(steps=20) if one.mode == "unbound"])
    assert [mode.mode for mode in summary.modes] == ["unbound"]
    assert summary.p99.comparison.verdict == "too-few-rounds"


def test_the_document_is_json_in_milliseconds() -> None:
    made = document(summarise(made_rounds(ranks=2, rounds=4, steps=100)))
    read = json.loads(json.dumps(made, allow_nan=False))
    assert read == made
    assert read["schema"] == 1
    assert [mode["mode"] for mode in read["modes"]] == ["unbound", "bound"]
    assert 4 < read["modes"][0]["step_ms"]["p50"] < 7
    assert [rank["rank"] for rank in read["modes"][1]["ranks"]] == [0, 1]
    p50 = read["effects"][0]
    assert (p50["what"], p50["verdict"], p50["unit"], p50["pairs"]) == ("step p50", "faster", "ms", 4)
    assert p50["times_faster"]["low"] == pytest.approx(1 / p50["bound_over_unbound"]["high"])
    assert len(p50["unbound"]) == len(p50["bound"]) == 4


# --- Commands


def command_rounds(
    walls: list[tuple[float, float]], metrics: list[tuple[float | None, float | None]]
) -> list[CommandRound]:
    rounds = []
    for number, (wall, metric) in enumerate(zip(walls, metrics, strict=True)):
        rounds.append(CommandRound("unbound", 2 * number, wall[0], metric[0]))
        rounds.append(CommandRound("bound", 2 * number + 1, wall[1], metric[1]))
    return rounds


def test_a_command_has_wall_time_and_its_metric() -> None:
    rounds = command_rounds([(10.0, 5.0), (10.2, 5.1)] * 2, [(100.0, 201.0), (101.0, 200.0)] * 2)
    higher = summarise_command(rounds, higher_is_better=True)
    assert higher.wall.sentence == "binding is 2.0 times faster here (2.0 to 2.0)"
    assert higher.metric is not None
    assert higher.metric.sentence == "binding is 2.0 times better here (2.0 to 2.0)"
    assert higher.metric.bound_over_unbound[0] == pytest.approx(2, abs=0.02)
    lower = summarise_command(rounds)
    assert lower.metric is not None
    assert lower.metric.comparison.verdict == "slower"
    assert lower.metric.bound_over_unbound[0] == pytest.approx(2, abs=0.02)
    assert [(mode.mode, mode.rounds) for mode in lower.modes] == [("unbound", 4), ("bound", 4)]


def test_a_command_that_prints_no_metric_has_none() -> None:
    summary = summarise_command(command_rounds([(1.0, 1.0)] * 4, [(None, math.nan)] * 4))
    assert summary.metric is None
    assert [mode.metric for mode in summary.modes] == [None, None]
    assert [each["what"] for each in command_document(summary)["effects"]] == ["wall time"]


def test_a_metric_that_is_missing_now_and_then_leaves_that_pair_out() -> None:
    summary = summarise_command(command_rounds([(1.0, 1.0)] * 5, [(None, 3.0), *[(6.0, 3.0)] * 4]))
    assert summary.metric is not None
    assert (summary.metric.comparison.rounds, summary.metric.comparison.left_out) == (4, 1)
    json.dumps(command_document(summary), allow_nan=False)


# --- Properties

nanoseconds = st.integers(0, 10**12)


@st.composite
def any_rounds(draw: st.DrawFn) -> list[Round]:
    ranks = draw(st.integers(0, 3))
    made = []
    for number in range(draw(st.integers(0, 6))):
        steps = draw(st.integers(0, 4))
        work = st.lists(nanoseconds, min_size=steps, max_size=steps).map(tuple)
        own = tuple(
            RankRound(
                rank,
                draw(work),
                draw(st.none() | st.integers(0, 99)),
                draw(st.none() | nanoseconds),
                draw(st.none() | st.floats(0, 1)),
                frozenset(),
            )
            for rank in range(ranks)
        )
        made.append(Round(draw(st.sampled_from(("unbound", "bound"))), number, draw(work), number, own))
    return made


@given(any_rounds())
def test_any_rounds_give_a_document_that_holds_together(rounds: list[Round]) -> None:
    made = document(summarise(rounds))
    json.dumps(made, allow_nan=False)
    for mode in made["modes"]:
        step = mode["step_ms"]
        assert step["p50"] <= step["p90"] <= step["p99"] <= step["max"]
        assert mode["skew"] is None or 1 <= mode["skew"]["p50"] <= mode["skew"]["max"]
        shares = [rank["slowest"] for rank in mode["ranks"] if rank["slowest"] is not None]
        assert not shares or sum(shares) == pytest.approx(1)
