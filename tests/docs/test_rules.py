"""The rules of docs/accounting.md: whoever cites one finds it there, and each has a timeline that is true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from timelines import replay

from .drawings import Drawing, drawings

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "docs/accounting.md").read_text()
DEFINED = set(re.findall(r"^(?:### |- \*\*)([RP]\d+)\b", RULES, re.MULTILINE))
DRAWN = drawings(RULES)


def citations() -> Iterator[tuple[str, str]]:
    """(place, rule) of every rule that code or a document names."""
    for folder in ("otel_goodput", "tests", "docs", "everyday", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md") and "third_party" not in path.parts:
                for rule in re.findall(r"\b(?:rules?|property|properties)? ?\(?\b(R\d\d?|P\d)\b", path.read_text()):
                    yield path.relative_to(ROOT).as_posix(), rule


def test_every_rule_that_is_cited_exists() -> None:
    cited = set(citations())
    assert len(cited) > 30
    assert {(place, rule) for place, rule in cited if rule not in DEFINED} == set()
    assert {f"R{number}" for number in range(1, 13)} | {f"P{number}" for number in range(1, 8)} == DEFINED


def test_every_rule_of_time_is_drawn() -> None:
    assert {rule for rule, _ in DRAWN} >= {
        f"R{number}" for number in (*range(1, 11), 12)
    }  # R11 has drawings of its own


@pytest.mark.parametrize("drawn", [one for _, one in DRAWN], ids=[rule for rule, _ in DRAWN])
def test_a_drawing_is_what_the_ledger_says(drawn: Drawing) -> None:
    seconds = range(len(drawn.account))
    answer = replay(drawn.rows, windows=[(second, second + 1) for second in seconds], at=len(drawn.account))
    by_second = []
    for window in answer["windows"]:
        owners = [name for name, share in window["seconds"].items() if share]
        assert len(owners) <= 1, f"second {window['start']} belongs to {window['seconds']}"
        by_second.append(owners[0] if owners else "")
    assert by_second == drawn.account, drawn.text
