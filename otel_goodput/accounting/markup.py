"""Renders a partition as HTML for notebooks: a bar and a table. No scripts; all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from otel_goodput.semconv import CATEGORIES, Category

NS: Final = 1_000_000_000  # here too: the pure core imports nothing but the words on the wire

# Productive time is green. Each kind of badput has a hue of its own.
_PRODUCTIVE: Final = "#2e7d32"
_BADPUT: Final = ("#c62828", "#ef6c00", "#f9a825", "#6a1b9a", "#1565c0", "#00838f", "#ad1457", "#4e342e", "#546e7a")
COLORS: Final = {
    name: _PRODUCTIVE if name == Category.PRODUCTIVE else _BADPUT[at % len(_BADPUT)]
    for at, name in enumerate(CATEGORIES)
}


def render(
    held: Iterable[tuple[str, str, int]], elapsed: int, title: str, remarks: tuple[str, ...] = (), *, known: bool = True
) -> str:
    """Render the bar and the table of a partition of `elapsed` ns under `title`, with `remarks` below.

    `held` are tuples (category, name within it, ns). If the fate of steps is not `known`, only seconds are shown: no
    bar, no shares.
    """
    rows = sorted(held, key=lambda row: (row[0] != Category.PRODUCTIVE, -row[2]))
    pieces = "".join(
        f'<span title="{_label(category, name)} {_share(ns, elapsed)}" style="display:inline-block;'
        f'height:1em;width:{100 * ns / elapsed:.3f}%;background:{COLORS[category]}"></span>'
        for category, name, ns in rows
    )
    bar = (
        '<div style="width:100%;max-width:40em;line-height:0;white-space:nowrap;overflow:hidden">' + pieces + "</div>"
        if known and pieces
        else ""
    )
    lines = "".join(
        f'<tr><td style="text-align:left"><span style="color:{COLORS[category]}">&#9632;</span> '
        f"{_label(category, name)}</td><td>{ns / NS:.3f} s</td>"
        + (f"<td>{_share(ns, elapsed)}</td>" if known else "")
        + "</tr>"
        for category, name, ns in rows
    )
    notes = "".join(f"<p>{_escaped(remark)}</p>" for remark in remarks)
    return f"<div><p><strong>{_escaped(title)}</strong></p>{bar}<table>{lines}</table>{notes}</div>"


def _label(category: str, name: str) -> str:
    return _escaped(f"{category} {name}".strip())


def _escaped(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else "?" for letter in text))


def _share(held: int, elapsed: int) -> str:
    return f"{100 * held / elapsed:.2f} %"
