"""Id lists and masks: what is taken, what is refused, and that printing is exact."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numa_launch.idsets import MAX_ID, format_ids, parse_ids, parse_mask
from tests.lay import mask

IDS = st.frozensets(st.integers(0, MAX_ID), max_size=200)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", set()),
        (" \n", set()),
        ("0", {0}),
        ("0-3", {0, 1, 2, 3}),
        ("0,2,4-5\n", {0, 2, 4, 5}),
        ("5,0-1", {0, 1, 5}),
        ("0-1,1-2", {0, 1, 2}),
        ("7\0", {7}),
    ],
)
def test_lists_that_are_taken(text: str, ids: set[int]) -> None:
    assert parse_ids(text) == ids


@pytest.mark.parametrize(
    "text",
    [
        "abc",
        "1-",
        "-1",
        "4-1",
        "1,,2",
        ",1",
        "1,",
        "1:2",
        "0-31:2/4",
        "0x1",
        "1 2",
        "1.5",
        "١",
        "1-2-3",
        "+1",
        "9" * 5000,
        "0-99999999999",
        f"{MAX_ID + 1}",
    ],
)
def test_lists_that_are_refused_name_the_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"'"):
        parse_ids(text)


@given(IDS)
def test_a_list_round_trips(ids: frozenset[int]) -> None:
    assert parse_ids(format_ids(ids)) == ids


@given(IDS)
def test_printed_ranges_are_exact_ascending_and_as_few_as_can_be(ids: frozenset[int]) -> None:
    ranges = [tuple(map(int, part.split("-"))) for part in format_ids(ids).split(",") if part]
    assert all(first < last for first, *rest in ranges for last in rest)
    assert all(right[0] > left[-1] + 1 for left, right in pairwise(ranges))


@given(IDS)
def test_a_mask_round_trips(ids: frozenset[int]) -> None:
    assert parse_mask(mask(ids)) == ids


@pytest.mark.parametrize(("text", "ids"), [("3", {0, 1}), ("00000001,00000000", {32}), ("FF", set(range(8)))])
def test_masks_that_are_taken(text: str, ids: set[int]) -> None:
    assert parse_mask(text) == ids


@pytest.mark.parametrize("text", ["", "g", "1,2", "0x3", "1,,00000000"])
def test_masks_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"'"):
        parse_mask(text)
