"""What an exported trace is sorted with, and the tracks that its slices are put on."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_goodput.reports.trace_walk import Lane
from otel_goodput.reports.trace_writer import FILES, Spool


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=40)), max_size=200), st.integers(1, 50))
def test_the_spool_sorts(tmp_path: Path, pieces: list[tuple[bytes, bytes]], held: int) -> None:
    with Spool(tmp_path, held) as spool:
        for key, piece in pieces:
            spool.add(key, piece)
        assert list(spool) == [piece for _, piece in sorted(pieces)]
    assert not list(tmp_path.iterdir())


def test_more_than_it_opens_files_for(tmp_path: Path) -> None:
    numbers = list(range(5 * FILES * 3))
    random.Random(5).shuffle(numbers)
    with Spool(tmp_path, 5) as spool:
        for number in numbers:
            spool.add(number.to_bytes(4, "big"), str(number).encode())
        assert [int(piece) for piece in spool] == sorted(numbers)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=40))
def test_a_lane_holds_only_what_lies_inside_or_apart(found: list[tuple[int, int]]) -> None:
    lane = Lane(1)
    taken: list[tuple[int, int]] = []
    for begin, length in sorted(found, key=lambda one: sum(one)):
        if lane.take(begin, begin + length):
            taken.append((begin, begin + length))
    for begin, end in taken:
        for other, until in taken:
            apart = end <= other or until <= begin
            assert apart or (begin <= other and until <= end) or (other <= begin and end <= until)
