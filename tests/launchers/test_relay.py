"""Lines of ranks, whatever pieces they come in."""

import os
from collections import deque
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from numa_launch.launchers.relay import LAST_LINES, MOST_LINE, Output, Sink, prefix_of

PIECES = st.lists(st.text("ab\n", max_size=9).map(str.encode), max_size=9)


class Kept(Sink):
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__(None, lambda _: None)
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def passed_on(pieces: list[bytes], prefix: bytes | None) -> tuple[bytes, bytes, list[bytes]]:
    """Return what comes out of an output that is fed these pieces, what its log holds, and its last lines."""
    reader, writer = os.pipe()
    sink, log, last = Kept(), Kept(), deque[bytes](maxlen=LAST_LINES)
    output = Output(reader, prefix, sink, log, last)
    for piece in filter(None, pieces):
        os.write(writer, piece)
        assert output.read()
    os.close(writer)
    assert not output.read()
    os.close(reader)
    return sink.data, log.data, list(last)


@given(PIECES)
def test_lines_are_whole_however_they_come(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    lines = whole.split(b"\n")[: -1 if whole.endswith(b"\n") or not whole else None]
    shown, logged, last = passed_on(pieces, b"[1] ")
    assert shown == b"".join(b"[1] " + line + b"\n" for line in lines)
    assert logged == whole
    assert last == lines[-LAST_LINES:]


@given(PIECES)
def test_without_a_prefix_nothing_is_changed(pieces: list[bytes]) -> None:
    shown, logged, _ = passed_on(pieces, None)
    assert shown == logged == b"".join(pieces)


def test_a_line_that_does_not_end_is_cut() -> None:
    shown, _, _ = passed_on([b"x" * 40_000] * 4, b"[0] ")
    lines = shown.splitlines()
    assert b"".join(line.removeprefix(b"[0] ") for line in lines) == b"x" * 160_000
    assert MOST_LINE < max(map(len, lines)) <= MOST_LINE + 40_000 + 4


def test_prefixes_are_of_one_width() -> None:
    assert [prefix_of(rank, size) for rank, size in ((0, 1), (9, 10), (9, 11), (10, 11), (7, 1000))] == [
        b"[0] ",
        b"[9] ",
        b"[ 9] ",
        b"[10] ",
        b"[  7] ",
    ]


def test_a_sink_that_cannot_be_written_says_so_once_and_takes_everything(tmp_path: Path) -> None:
    said: list[str] = []
    with open("/dev/full", "wb") as full:
        sink = Sink(full.fileno(), said.append, is_log=True)
        for _ in range(3):
            sink.write(b"x\n")
    assert (said, sink.has_backlog, sink.is_full) == (["No space left on device"], False, False)


def test_a_sink_writes_lines_at_a_time() -> None:
    reader, writer = os.pipe()
    sink = Sink(writer, lambda _: None)
    sink.write(b"a" * 3000 + b"\n" + b"b" * 3000 + b"\n")
    sink.write_some()
    assert os.read(reader, 9000) == b"a" * 3000 + b"\n"
    sink.write_some()
    assert os.read(reader, 9000) == b"b" * 3000 + b"\n"
    assert not sink.has_backlog
    os.close(reader)
    os.close(writer)
