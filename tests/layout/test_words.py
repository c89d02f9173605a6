"""Some words may not be names: what `told`, `found` or `said` is, only its author knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from .test_layers import PACKAGE

ROOT = PACKAGE.parent
FOLDERS = ("otel_goodput", "benchmarks", "collector", "docs", "everyday", "examples", "tests", ".ci")
FORBIDDEN = {"told", "found", "asked", "said", "beside", "heard"}
# A word that no letter precedes or follows, in a line that is no comment: only a module that has one need be parsed.
POSSIBLE = re.compile(
    rf"^(?! *#).*(?<![A-Za-z])(?:{'|'.join(sorted(FORBIDDEN))})(?![a-z])", re.MULTILINE | re.IGNORECASE
)
PUBLIC = {"said_by"}  # a field of a report's JSON


def _names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each name that a module gives to something, with its line."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if POSSIBLE.search(text) else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def test_no_name_is_a_forbidden_word() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in _names(path)
        if name not in PUBLIC and not name.startswith("test_")  # the name of a test is a sentence
        if FORBIDDEN & {name.lower(), *name.lower().split("_")}
    ]
    assert not bad, "say what it is: " + ", ".join(bad)


def test_no_name_in_the_page_s_scripts_is_a_forbidden_word() -> None:
    word = "|".join(sorted(FORBIDDEN))
    named = re.compile(rf"\b(?:const|let|function|class)\s+({word})\b|\(({word})\) =>|\bthis\.({word})\b|^  ({word})\(")
    scripts = sorted((PACKAGE / "_viewer" / "assets").glob("*.js"))
    lines = [(path, line) for path in scripts for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(scripts) > 20 and not [f"{path.name}: {line.strip()}" for path, line in lines if named.search(line)]


DOCS = ROOT / "docs"
# Other words for a concept of docs/concepts.md, each with the word to use.
SYNONYMS = {
    "incarnation": "attempt",
    "stretch": "step segment",
    "tally": "account",
    "bookkeeping": "ledger",
    "lens": "window",
}


def test_each_concept_has_one_word() -> None:
    table = (DOCS / "concepts.md").read_text(encoding="utf-8").partition("## Words")[2]
    words = [word for word in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE) if word not in ("word", "---")]
    assert len(words) > 25 and len(set(words)) == len(words)
    assert {*SYNONYMS.values()} <= {*words}
    pages = (ROOT / "README.md", *DOCS.rglob("*.md"))
    used = [
        f"{page.name}: {synonym}, for {word}"
        for page in pages
        for synonym, word in SYNONYMS.items()
        if re.search(rf"\b{synonym}(e?s)?\b", page.read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert not used, ", ".join(used)
