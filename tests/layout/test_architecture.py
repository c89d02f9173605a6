"""docs/architecture.md names every module of ``recording/``, once."""

from __future__ import annotations

import re
from pathlib import Path

import otel_goodput

ROOT = Path(otel_goodput.__file__).parent


def test_the_table_of_recording_is_complete() -> None:
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| file in `recording/`")[2].partition("\n\n")[0]
    named = [
        name
        for row in table.splitlines()
        for name in re.findall(r"`(\w+\.py)`", row.split("|")[1] if "|" in row else "")
    ]
    there = {path.name for path in (ROOT / "recording").glob("*.py")} - {"__init__.py"}
    assert sorted(named) == sorted(there)
