"""docs/journal.md says of every byte what the code says."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from otel_goodput._accounting import events
from otel_goodput._journal import digest, facts, records, rundir, state_file
from otel_goodput._live import keeper
from otel_goodput._timeline import recovery
from otel_goodput.exporters.registry import FIRST_OF_OTHERS, OURS, numbers

TEXT = (Path(__file__).parents[2] / "docs/journal.md").read_text()
TYPES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q", "8 bytes": "8s"}


def table(head: str) -> list[list[str]]:
    """The rows of the table with that heading."""
    body = TEXT.split(f"| {head} |\n", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in body]


def layout(rows: list[list[str]]) -> str:
    """The struct that the rows describe, each at its documented place."""
    form = "<"
    for place, kind, _ in rows:
        assert struct.calcsize(form) == int(re.split("–", place)[0]), place
        form += TYPES[kind]
    return form


def test_the_header() -> None:
    rows = table("bytes | type | header")
    check = struct.calcsize("<I")
    assert layout(rows[:7]) == records.HEADER.format
    assert layout([["0", *rows[7][1:]], ["8", *rows[8][1:]]]) == records.HEARTBEAT.format
    assert rows[7][0].startswith(str(records.HEARTBEAT_AT))
    assert rows[9][0].startswith(str(records.HEARTBEAT_AT + records.HEARTBEAT.size))
    assert rows[10][0] == f"{records.HEARTBEAT_AT + records.HEARTBEAT.size + check}–{records.LEFT_STEP_AT - 1}"
    assert rows[11][0].startswith(str(records.LEFT_STEP_AT)) and rows[12][0].endswith(str(records.HEADER_SIZE - 1))
    assert layout([["0", *rows[11][1:]], ["8", *rows[12][1:]]]) == records.LEFT_STEP.format
    assert f"{records.CAPACITY:,} records of {records.SIZE} bytes" in TEXT
    assert f"`{records.MAGIC.decode()}`" in rows[0][2] and str(records.VERSION) in rows[1][2]


def test_a_record() -> None:
    assert layout(table("bytes | type | record")) == records.RECORD.format


def test_every_kind() -> None:
    documented = {int(number): name.strip("`") for number, name, _ in table("kind | name | meaning")}
    assert documented.keys() == records.KINDS.keys()
    assert all(number == (getattr(events, name, 0) or getattr(records, name)) for number, name in documented.items())


def test_every_flag() -> None:
    documented = [(int(number), name.strip("`")) for number, name, _, _ in table("flag | name | of | meaning")]
    assert all(getattr(records if number >= 256 else events, name) == number for number, name in documented)
    assert len(documented) == 19


def test_exporters_and_snapshots() -> None:
    assert all(f"{number} `{name}`" in TEXT for name, number in numbers(OURS).items())
    assert f"from {FIRST_OF_OTHERS} on" in TEXT
    assert recovery.FORM.version == 1 and keeper.SNAPSHOT_S == 300 and "every five minutes" in TEXT


def test_digests_and_facts() -> None:
    for form in (recovery.FORM, digest.FORM):
        assert f"`{form.magic.decode().rstrip(chr(0))}`" in TEXT and f"u16: version, {form.version} " in TEXT
    end = state_file.FRAME.size
    assert f"| 10–{end - 1} | SHA-256" in TEXT and f"| {end}–{end + 3} | u32" in TEXT
    assert rundir.DIGEST == 2**20 and "at most 1 MiB" in TEXT
    assert rundir.FACTS == 64 * 2**10 and "at most 64 KiB" in TEXT
    assert keeper.DIGEST_S == 30 and "every 30 seconds" in TEXT
    assert f"{facts.LONGEST:,} characters" in TEXT
    for mapping in ("resource", "versions", "settings", "hyperparameters", "dropped"):
        assert mapping in facts.Facts._fields and f"`{mapping}`" in TEXT
