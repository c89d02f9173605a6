"""What users read is in American English: the documentation, and the strings of the package and of its page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_goodput

ROOT = Path(__file__).parents[2]
PACKAGE = Path(otel_goodput.__file__).parent
# How a British word begins, or is, and what it is in American English.
WORDS = {
    "analys(?:e|ed|es|ing)": "analyze",
    "artefact": "artifact",
    "authoris": "authoriz",
    "behaviour": "behavior",
    "cancell(?:ed|ing)": "canceled, canceling",
    "catalogue": "catalog",
    "categoris": "categoriz",
    "centr(?:e|es|ed|ing)": "center",
    "colour": "color",
    "customis": "customiz",
    "defence": "defense",
    "dialogue": "dialog",
    "favour": "favor",
    "finalis": "finaliz",
    "flavour": "flavor",
    "fulfil": "fulfill",
    "grey": "gray",
    "harbour": "harbor",
    "honour": "honor",
    "(?:re)?initialis": "initializ",
    "judgement": "judgment",
    "labell": "label",
    "learnt": "learned",
    "licence": "license",
    "localis": "localiz",
    "maximis": "maximiz",
    "minimis": "minimiz",
    "modell": "model",
    "neighbour": "neighbor",
    "normalis": "normaliz",
    "optimis(?:e|ed|es|er|ers|ing|ation)": "optimiz",
    "organis": "organiz",
    "parallelis(?:e|ed|es|ing|ation)": "paralleliz",
    "practise": "practice",
    "prioritis": "prioritiz",
    "programme": "program",
    "queueing": "queuing",
    "realis(?:e|ed|es|ing|ation)": "realiz",
    "recognis": "recogniz",
    "(?:de)?serialis": "serializ",
    "signall": "signal",
    "spelt": "spelled",
    "standardis": "standardiz",
    "summaris": "summariz",
    "synchronis": "synchroniz",
    "travell": "travel",
    "tunnell": "tunnel",
    "utilis": "utiliz",
    "visualis": "visualiz",
    "whilst": "while",
}
# Words that end where they end: `fulfill` and `programmed` are American, too.
WHOLE = {"fulfil", "grey", "learnt", "programme", "spelt", "whilst"}
BRITISH = re.compile(
    r"(?<![A-Za-z])(?:"
    + "|".join(f"{word}(?![a-z])" if word in WHOLE or word.endswith(")") else word for word in WORDS)
    + ")",
    re.IGNORECASE,
)
# Texts of others that are looked for as they are.
OF_OTHERS = {"cancelling deletion"}  # Kubernetes


def misspellings(text: str) -> list[str]:
    """British words in `text`; those all in capitals are names in protocols, such as gRPC's ``CANCELLED``."""
    return [word for word in BRITISH.findall(text) if not word.isupper()]


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every string of a module, docstrings and parts of f-strings among them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in OF_OTHERS:
            yield node.lineno, node.value


PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "collector/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def test_pages() -> None:
    misspelled = [
        (page.relative_to(ROOT).as_posix(), number, words)
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if (words := misspellings(line))
    ]
    assert misspelled == []


def test_strings_of_the_package() -> None:
    misspelled = [
        (path.relative_to(PACKAGE).as_posix(), line, words)
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in strings(path)
        if (words := misspellings(text))
    ]
    assert misspelled == []


def test_strings_of_the_page() -> None:
    misspelled = [
        (path.name, text)
        for path in sorted((PACKAGE / "viewer" / "assets").glob("*.js"))
        for text in re.findall(r'"[^"\n]*"|`[^`]*`', path.read_text(encoding="utf-8"))
        if misspellings(text)
    ]
    assert misspelled == []


@pytest.mark.parametrize(
    ("text", "british"),
    [
        ("The behaviour of labelled series", ["behaviour", "labell"]),
        ("Reinitialisation; deserialises", ["Reinitialis", "deserialis"]),
        ("behavior, programmed, fulfilled, optimistic, realistic, analysis, parallelism, central", []),
        ("the code `CANCELLED`", []),
        ("It was cancelled", ["cancelled"]),
    ],
)
def test_the_words(text: str, british: list[str]) -> None:
    assert misspellings(text) == british
