"""What an exported trace is sorted and packed with: the spool, and the writer of protocol buffers."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_goodput.reports import protobuf as pb
from otel_goodput.reports.spool import FILES, Spool
from otel_goodput.reports.trace_lanes import Lane


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


@given(st.integers(-(2**63), 2**64 - 1))
def test_varints(value: int) -> None:
    found = pb.varint(value)
    assert all(byte & 0x80 for byte in found[:-1]) and not found[-1] & 0x80
    assert sum((byte & 0x7F) << 7 * at for at, byte in enumerate(found)) == value % 2**64
    assert len(found) == 1 or found[-1], "as short as can be"


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


def test_numbers_of_fields() -> None:
    assert pb.integer(11, 300) == b"\x58\xac\x02"
    assert pb.string(6, "a") == b"\x32\x01a" and pb.message(1, b"x", b"y") == b"\x0a\x02xy"
    assert pb.double(44, 1.0) == b"\xe1\x02" + b"\0" * 6 + b"\xf0\x3f"
