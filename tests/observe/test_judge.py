"""The verdict on a process, for every kind of it."""

import pytest

from numa_launch.observe.judge import VERDICTS, Seen, Should, judge, remote_share

NODE_0, NODE_1 = frozenset(range(8)), frozenset(range(8, 16))
ALL = NODE_0 | NODE_1
ON_1 = Should(NODE_1, NODE_1, frozenset({1}))
PART = frozenset({8, 9})


@pytest.mark.parametrize(
    ("seen", "should", "verdict"),
    [
        (Seen(NODE_1, (NODE_1, NODE_1)), ON_1, "local"),
        (Seen(NODE_1, (NODE_1, PART)), ON_1, "local"),
        (Seen(PART, (PART,)), Should(PART, NODE_1), "local"),
        (Seen(NODE_1, (NODE_1,)), Should(PART, NODE_1), "local"),
        (Seen(PART, (PART,)), ON_1, "narrowed"),
        (Seen(ALL, (ALL,)), ON_1, "unbound"),
        (Seen(NODE_0, (NODE_0,)), ON_1, "wrong-node"),
        (Seen(PART | {0}, (PART,)), ON_1, "wrong-node"),
        (Seen(NODE_1, (NODE_1, ALL)), ON_1, "threads-escaped"),
        (Seen(NODE_1, (NODE_1, NODE_0)), ON_1, "threads-escaped"),
        (Seen(NODE_1, (NODE_1,), {0: 11, 1: 89}), ON_1, "memory-remote"),
        (Seen(NODE_1, (NODE_1,), {0: 10, 1: 90}), ON_1, "local"),
        (Seen(NODE_1, (NODE_1,), {0: 100}), ON_1._replace(memory_nodes=frozenset()), "local"),
        (Seen(NODE_1, (NODE_1,), {}), ON_1, "local"),
        (Seen(ALL, (ALL,)), None, "unbound"),
        (Seen(PART, (PART,)), None, "narrowed"),
        (Seen(PART, (PART, ALL)), None, "threads-escaped"),
    ],
)
def test_verdict(seen: Seen, should: Should | None, verdict: str) -> None:
    assert judge(seen, should, ALL) == verdict
    assert verdict in VERDICTS


def test_moved_by_a_cpuset_is_on_the_wrong_node_though_it_has_all_that_the_cpuset_allows() -> None:
    assert judge(Seen(NODE_0, (NODE_0,)), ON_1, allowed=NODE_0) == "wrong-node"


def test_a_higher_limit_allows_more_memory_elsewhere() -> None:
    seen = Seen(NODE_1, (NODE_1,), {0: 40, 1: 60})
    assert judge(seen, ON_1, ALL, remote_limit=0.5) == "local"
    assert remote_share(seen.memory_kb, frozenset({1})) == pytest.approx(0.4)
