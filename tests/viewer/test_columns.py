"""The container: what goes in comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.container import Container, unpacked
from otel_goodput._viewer.document import MAGIC, Columns, packed

NUMBERS = st.lists(
    st.one_of(st.integers(-3, 300), st.integers(-(1 << 63), 1 << 63), st.integers(), st.just(-1)), max_size=40
)


@given(NUMBERS)
def test_integers_of_any_size_come_back(numbers: list[int]) -> None:
    assert unpacked(packed(numbers)) == numbers


@given(st.lists(st.tuples(st.integers(), st.integers()), max_size=20), st.binary(max_size=20), st.text(max_size=20))
def test_a_container_comes_back(rows: list[tuple[int, int]], raw: bytes, text: str) -> None:
    columns = Columns()
    ids = [abs(one) % (1 << 64) for one, _ in rows]
    head = {"text": text, "t": columns.table(("a", "b"), rows), "raw": columns.raw(raw), "ids": columns.ids(ids)}
    container = Container(columns.container(head))
    assert container.head["text"] == text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert container.head["t"]["rows"] == len(rows)
    assert list(zip(*container.table(container.head["t"]).values(), strict=True)) == rows
    assert container.raw(container.head["raw"]) == raw
    assert container.ids(container.head["ids"]) == ids


def test_successive_times_take_few_bytes() -> None:
    times = [number * 60_000_000 + number * 7919 % 1000 for number in range(1000)]
    assert len(packed(times)) < 5 * len(times)


def test_what_is_no_container_is_refused() -> None:
    for data in (b"", b"OG", MAGIC, b"\x1f\x8b" + bytes(100)):
        with pytest.raises(ValueError, match="not an otel-goodput page"):
            Container(data)
    with pytest.raises(ValueError, match="cut short"):
        unpacked(b"\x80")
    with pytest.raises(ValueError, match="differ in length"):
        Columns().columns({"a": [1], "b": []})
