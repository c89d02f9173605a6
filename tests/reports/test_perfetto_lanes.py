"""The tracks that slices of an exported trace are put on."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from otel_goodput.reports.perfetto import Lanes


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=40))
def test_a_track_holds_only_what_lies_inside_or_apart(spans: list[tuple[int, int]]) -> None:
    lanes = Lanes(lambda number: number)
    tracks: dict[int, list[tuple[int, int]]] = {}
    for begin, end in sorted(((begin, begin + length) for begin, length in spans), key=lambda one: (one[0], -one[1])):
        tracks.setdefault(lanes.place(begin, end), []).append((begin, end))
    for number, held in tracks.items():
        for (begin, end), (other, until) in combinations(held, 2):
            apart = end <= other or until <= begin
            assert apart or (begin <= other and until <= end) or (other <= begin and end <= until)
        if number:  # no track more than needed: what opened it lay across something on each track before
            first = held[0]
            for before in range(number):
                assert any(begin < first[1] and first[0] < end for begin, end in tracks[before])
