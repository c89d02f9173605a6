"""Renders a partition as HTML for notebooks: a bar and a table. No scripts; all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from otel_goodput.semconv import Category

NS: Final = 1_000_000_000  # here too: the pure core imports nothing but the words on the wire

# After Okabe and Ito: people who do not see all colors can tell them apart. The page has the same table (colors.js),
# and a second color of each for the dark.
COLORS: Final = {
    Category.PRODUCTIVE: "#0072b2",
    Category.ACCELERATOR_INIT: "#8d6bb5",
    Category.TRAINING_PREP: "#b59ad6",
    Category.PROGRAM_STARTUP: "#cc79a7",
    Category.DATA_LOADING: "#e69f00",
    Category.CHECKPOINT_SAVE: "#009e73",
    Category.CHECKPOINT_RESTORE: "#6fc3a8",
    Category.CUSTOM: "#b8a900",
    Category.WASTED_PROGRESS: "#d55e00",
    Category.STALLED: "#8c1d18",
    Category.INFRASTRUCTURE_RECOVERY: "#4d4d4d",
    Category.ELASTIC_SLICE_DOWN: "#7a4a21",
    Category.ELASTIC_SCALE_UP: "#a6764a",
    Category.ELASTIC_REINITIALIZATION: "#c9a987",
    Category.IN_FLIGHT: "#56b4e9",
    Category.OTHER: "#b3b3b3",
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
