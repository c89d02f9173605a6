"""docs/reasons.md has every kind of entry that tells a reason, with what it tells."""

from __future__ import annotations

import re
from pathlib import Path

from otel_goodput._journal.reasons import SAYABLE
from otel_goodput._tools.reason.arguments import MARGIN_S
from otel_goodput._tools.reason.logs import EVENTS, SYSTEM_EVENTS, Tells

TEXT = (Path(__file__).parents[2] / "docs" / "reasons.md").read_text(encoding="utf-8")


def told(tells: Tells) -> str:
    return f"`{tells.reason}` | {tells.strength}" if tells.reason is not None else "nothing | "


def test_the_tables_are_those_of_the_code() -> None:
    rows = [f"| `{method}` | {told(tells)} |" for method, tells in SYSTEM_EVENTS.items()]
    events = [f"| `{event}` | {kind} | {told(tells)} |" for (event, kind), tells in EVENTS.items()]
    assert [line for line in TEXT.splitlines() if line in {*rows, *events}] == rows + events
    assert re.findall(r"^\| `\w+` \| (?:Pod|Node) \|.*", TEXT, re.MULTILINE) == events


def test_the_words_are_those_of_the_code() -> None:
    assert ", ".join(f"`{reason}`" for reason in SAYABLE) in TEXT.replace("\n", " ")
    assert f"from {MARGIN_S} s before the last sign of life" in TEXT.replace("\n", " ")


def test_of_methods_and_events_all_reasons_can_be_said() -> None:
    for tells in (*SYSTEM_EVENTS.values(), *EVENTS.values()):
        assert tells.reason is None or (tells.reason in SAYABLE and 0 < tells.strength < 100)
