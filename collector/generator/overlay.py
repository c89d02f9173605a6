"""Lay configurations over each other, as the collector does with several ``--config``, and keep their comments.

It reads the YAML that this package's own configurations are written in, not YAML at large: block mappings whose keys
are plain words, and flow mappings (``{a: b}``) on one line. All else is a value, which is kept as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_ENTRY = re.compile(r"( *)([\w./-]+):(?: +(.*))?$")
_QUOTES = "'\""


@dataclass
class Entry:
    """A key of a mapping.

    Attributes:
        rest: what follows the colon on the same line, with its comment.
        lead: comments and blank lines before the key, without their indentation.
        children: the entries of a block mapping; None for any other value.
        body: the lines of any other value below the key, without the indentation of the key.
    """

    rest: str = ""
    lead: list[str] = field(default_factory=list)
    children: Mapping | None = None
    body: list[str] = field(default_factory=list)


Mapping = dict[str, Entry]


def laid_over(first: str, *others: str) -> str:
    """Return the text of a configuration with `others` laid over it in this order; mappings are merged, lists replaced.

    The comment at the head of each text is left out.
    """
    merged = _mapping(_headless(first))
    for other in others:
        _merge(merged, _mapping(_headless(other)))
    return "\n".join(_lines(merged)).strip("\n") + "\n"


def _headless(text: str) -> list[str]:
    lines = text.splitlines()
    while lines and (not lines[0] or lines[0].startswith("#")):
        del lines[0]
    return lines


def _mapping(lines: list[str]) -> Mapping:
    """Read a block mapping whose keys are not indented."""
    entries: Mapping = {}
    lead: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line or line.startswith("#"):
            lead.append(line)
            continue
        entry = _ENTRY.match(line)
        if entry is None or entry[1]:
            raise ValueError(f"not an entry of a mapping: {line!r}")
        end = next((i for i in range(at, len(lines)) if lines[i] and not lines[i].startswith((" ", "#"))), len(lines))
        while end > at and not lines[end - 1].startswith(" "):
            end -= 1  # comments and blank lines before the next key are the next key's
        entries[entry[2]] = _entry(entry[3] or "", lead, lines[at:end])
        lead, at = [], end
    return entries


def _entry(rest: str, lead: list[str], below: list[str]) -> Entry:
    value = _without_comment(rest)
    # The body of a string (`>-`, `|`) is text, even where it looks like a mapping.
    if below and (not value or value.startswith("&")):
        first = next(line for line in below if line.strip() and not line.lstrip().startswith("#"))
        width = len(first) - len(first.lstrip())
        if _ENTRY.match(first[width:]):
            return Entry(rest, lead, _mapping([line[width:] for line in below]))
    return Entry(rest, lead, None, below)


def _merge(below: Mapping, above: Mapping) -> None:
    for key, entry in above.items():
        old = below.get(key)
        if old is None:
            below[key] = entry
        elif (ours := _children(old)) is not None and (theirs := _children(entry)) is not None:
            _merge(ours, theirs)
            if old.children is None:  # it was on one line
                comment = old.rest[len(_without_comment(old.rest)) :].strip()
                old.rest, old.children = comment, ours
        else:
            entry.lead = entry.lead or old.lead
            below[key] = entry


def _children(entry: Entry) -> Mapping | None:
    """The entries of a mapping, of a flow mapping too; None for another value."""
    value = _without_comment(entry.rest)
    if entry.children is not None or not (value.startswith("{") and value.endswith("}")):
        return entry.children
    pairs = (part.partition(":") for part in _parts(value[1:-1]))
    return {key.strip(): Entry(text.strip()) for key, _, text in pairs}


def _parts(text: str) -> Iterator[str]:
    """Split the inside of a flow mapping at its own commas."""
    depth, quote, begin = 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _QUOTES:
            quote = sign
        elif sign in "{[":
            depth += 1
        elif sign in "}]":
            depth -= 1
        elif sign == "," and not depth:
            yield text[begin:at]
            begin = at + 1
    if text[begin:].strip():
        yield text[begin:]


def _without_comment(rest: str) -> str:
    quote = ""
    for at, sign in enumerate(rest):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _QUOTES:
            quote = sign
        elif sign == "#" and (at == 0 or rest[at - 1] == " "):
            return rest[:at].rstrip()
    return rest.rstrip()


def _lines(mapping: Mapping) -> Iterator[str]:
    for key, entry in mapping.items():
        yield from entry.lead
        yield f"{key}: {entry.rest}".rstrip()
        if entry.children is not None:
            yield from (f"  {line}" if line else line for line in _lines(entry.children))
        yield from entry.body
