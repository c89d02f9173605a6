"""Whatever is in a file that is imported, or in the one with the statements: it is read, or refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_goodput._journal.notes import SAYABLE, append_reasons, in_force, read_reasons, statement
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._tools.reason.logs import read
from otel_goodput.errors import GoodputError
from otel_goodput.semconv import REASONS

from .logs import NS, audit, event, new_event

AT = 1_790_000_000 * NS
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
KNOWN = (
    audit("compute.instances.preempted", AT),
    event("Preempted", AT),
    new_event("Preempted", AT),
)


def paths(content: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value in a JSON document."""
    places = [before] if before else []
    for key, value in content.items() if isinstance(content, dict) else ():
        places += paths(value, (*before, key))
    return places


@st.composite
def spoilt(draw: st.DrawFn) -> Any:
    """A known entry of which some values are something else, or are gone."""
    entry = json.loads(json.dumps(draw(st.sampled_from(KNOWN))))
    for place in draw(st.lists(st.sampled_from(paths(entry)), max_size=4)):
        held = entry
        for key in place[:-1]:
            held = held.get(key) if isinstance(held, dict) else None
        if isinstance(held, dict):
            if draw(st.booleans()):
                held[place[-1]] = draw(JSON)
            else:
                held.pop(place[-1], None)
    return entry


@given(st.lists(spoilt() | JSON, max_size=4), st.booleans())
def test_any_entries_are_read_or_left_out(items: list[Any], as_list: bool) -> None:
    data = json.dumps({"kind": "List", "items": items} if as_list else items).encode()
    try:
        parsed = read(data, "the file")
    except GoodputError as error:
        assert str(error).startswith("the file ")
        return
    assert len(parsed.entries) + parsed.left_out == sum(isinstance(one, dict) for one in items)
    for one in parsed.entries:
        assert one.times and all(isinstance(at, int) and abs(at) < 2**63 for at in one.times)
        assert one.evidence.reason is None or one.evidence.reason in SAYABLE
        assert all(isinstance(key, str) and isinstance(value, str) and value for key, value in one.names.items())


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read(data, "the file")
    except GoodputError as error:
        assert str(error).startswith("the file ")


def test_known_entries_are_read() -> None:
    for one in KNOWN:
        (parsed,) = read(json.dumps([one]).encode(), "the file").entries
        assert (parsed.evidence.reason, parsed.times) == ("preemption", (AT,))


GOOD = statement(2, "maintenance", "crash", "alice@host", person=True, recorded_at=1.0, note="n").to_json() | {
    "format": 1
}


@st.composite
def statement_lines(draw: st.DrawFn) -> bytes:
    """A line that is a statement but for some of its fields, or anything."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=60)).replace(b"\n", b"")
    changes = draw(st.dictionaries(st.sampled_from(sorted(GOOD)), JSON, max_size=2))
    return json.dumps(GOOD | changes).encode()


@given(st.lists(statement_lines(), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_statements_are_not_trusted(tmp_path: Path, lines: list[bytes]) -> None:
    run = RunDirectory(tmp_path / "run")
    run.make()
    run.reasons_path.write_bytes(b"\n".join(lines))
    reasons = read_reasons(run)
    filled = sum(1 for line in lines if line)
    assert (reasons.note is None) is (len(reasons.statements) == filled)
    for one in reasons.statements:
        assert one.attempt >= 1 and one.reason in SAYABLE and one.first_reason in REASONS
        assert one.author.isprintable() and len(one.author) <= 200 and one.note.isprintable() and len(one.note) <= 200
    # What is added later is there, behind whatever there was.
    more = statement(7, "signal", "crash", "bob", person=True, recorded_at=2.0)
    append_reasons(run, [more])
    assert read_reasons(run).statements == (*reasons.statements, more)


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(SAYABLE), st.booleans(), st.integers(0, 99)), max_size=12))
def test_the_latest_person_counts_else_the_latest_log(entries: list[tuple[int, str, bool, int]]) -> None:
    statements = [
        statement(attempt, reason, "crash", f"{number}", person=person, recorded_at=float(number))
        for number, (attempt, reason, person, _) in enumerate(entries)
    ]
    expected = {}
    for attempt in {one.attempt for one in statements}:
        mine = [one for one in statements if one.attempt == attempt]
        expected[attempt] = ([one for one in mine if one.person] or mine)[-1]
    assert in_force(statements) == expected
