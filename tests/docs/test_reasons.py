"""docs/reasons.md has every kind of entry that tells a reason, with what it evidence."""

from __future__ import annotations

import json
import re
from pathlib import Path

from otel_goodput._journal.notes import FORMAT, SAYABLE, statement
from otel_goodput._journal.rundir import REASONS_FILE
from otel_goodput._tools.reason.command import MARGIN_S
from otel_goodput._tools.reason.logs import EVENTS, SYSTEM_EVENTS, Evidence

TEXT = (Path(__file__).parents[2] / "docs" / "reasons.md").read_text(encoding="utf-8")


def meaning(evidence: Evidence) -> str:
    return f"`{evidence.reason}` | {evidence.strength}" if evidence.reason is not None else "nothing | "


def test_the_tables_are_those_of_the_code() -> None:
    rows = [f"| `{method}` | {meaning(evidence)} |" for method, evidence in SYSTEM_EVENTS.items()]
    events = [f"| `{event}` | {kind} | {meaning(evidence)} |" for (event, kind), evidence in EVENTS.items()]
    assert [line for line in TEXT.splitlines() if line in {*rows, *events}] == rows + events
    assert re.findall(r"^\| `\w+` \| (?:Pod|Node) \|.*", TEXT, re.MULTILINE) == events


def test_the_words_are_those_of_the_code() -> None:
    assert ", ".join(f"`{reason}`" for reason in SAYABLE) in TEXT.replace("\n", " ")
    assert f"from {MARGIN_S} s before the last sign of life" in TEXT.replace("\n", " ")


def test_every_reason_of_methods_and_events_can_be_recorded() -> None:
    for evidence in (*SYSTEM_EVENTS.values(), *EVENTS.values()):
        assert evidence.reason is None or (evidence.reason in SAYABLE and 0 < evidence.strength < 100)


def test_the_file_is_where_and_what_the_page_says() -> None:
    assert f"`journal/{REASONS_FILE}`" in TEXT
    (example,) = re.findall(r"^```text\n(\{.*?\})\n```$", TEXT, re.MULTILINE | re.DOTALL)
    written = statement(
        3, "maintenance", "crash", "alice@host", person=True, recorded_at=1790000000.5, note="rack 7 was moved"
    )
    assert json.loads(example) == {"format": FORMAT, **written.to_json()}
