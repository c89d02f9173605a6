"""docs/architecture.md has every room of the package, and names only files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import otel_goodput

ROOT = Path(otel_goodput.__file__).parent
TEXT = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_room_is_in_the_table_once() -> None:
    rows = TEXT.partition("## Rooms")[2].partition("## ")[0].splitlines()
    named = [name for row in rows if row.startswith("| `") for name in re.findall(r"`([\w/.]+)`", row.split("|")[1])]
    there = {path.name for path in ROOT.glob("*.py")}
    there |= {f"{path.parent.name}/" for path in ROOT.glob("*/__init__.py")}
    assert sorted(named) == sorted(there)


def test_the_files_on_the_page_exist() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", TEXT))
    assert len(named) > 30
    assert [name for name in sorted(named) if not ((ROOT / name).exists() or (ROOT.parent / name).exists())] == []
    rows = TEXT.partition("## Rooms")[2].partition("## ")[0].splitlines()
    for row in (row for row in rows if row.startswith("| `")):
        rooms, inside = row.split("|")[1:3]
        for name in re.findall(r"`(\w+\.py)`", inside):
            places = [ROOT / room / name for room in re.findall(r"`(\w+)/`", rooms)]
            assert any(place.exists() for place in places), f"{name} is in none of {rooms}"


def test_the_page_is_short() -> None:
    """Who knows OpenTelemetry but not this package reads it in minutes."""
    assert len(TEXT.split()) < 1500
