"""Some words may not be names: what `told`, `found` or `said` is, only its author knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .test_layers import FILES, PACKAGE, tree

FORBIDDEN = {"told", "found", "asked", "said", "beside", "heard"}
# Packages and modules ('' is the package itself) whose names are still to be mended. This set only shrinks.
UNMENDED: set[str] = set()
PUBLIC = {"said_by"}  # a field of a report's JSON


def _names(module: str) -> Iterator[tuple[int, str]]:
    """Yield each name that a module gives to something, with its line."""
    for node in ast.walk(tree(module)):
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
    clean = [module for module in FILES if module.split(".")[0] not in UNMENDED]
    assert len(clean) > 100
    bad = [
        f"{module}:{line}: {name}"
        for module in clean
        for line, name in _names(module)
        if name not in PUBLIC and FORBIDDEN & {name.lower(), *name.lower().split("_")}
    ]
    assert not bad, "say what it is: " + ", ".join(bad)


DOCS = PACKAGE.parent / "docs"
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
    pages = (PACKAGE.parent / "README.md", *DOCS.rglob("*.md"))
    used = [
        f"{page.name}: {synonym}, for {word}"
        for page in pages
        for synonym, word in SYNONYMS.items()
        if re.search(rf"\b{synonym}(e?s)?\b", page.read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert not used, ", ".join(used)
