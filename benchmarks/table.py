"""The table of results: ratios first, then medians."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

HEAD = ("", "ratio", "measured", "target", "")


@dataclass(frozen=True)
class Row:
    """One line: `passed` is None where there is no target."""

    group: str
    what: str
    ratio: str
    measured: str
    target: str = ""
    passed: bool | None = None

    @property
    def verdict(self) -> str:
        return "" if self.passed is None else "pass" if self.passed else "miss"

    def cells(self) -> tuple[str, str, str, str, str]:
        return (self.what, self.ratio, self.measured, self.target, self.verdict)


def compared(ratios: Sequence[float]) -> str:
    """The median of paired ratios, and the range in which they lay."""
    middle = f"{statistics.median(ratios):.3g}×"
    return middle if len(ratios) < 2 else f"{middle} ({min(ratios):.3g} to {max(ratios):.3g})"


def seconds(value: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def mebibytes(value: float) -> str:
    return f"{value / (1 << 20):.1f} MiB"


def per_second(value: float) -> str:
    return f"{value:,.0f}/s"


def as_text(rows: Sequence[Row]) -> str:
    """For a terminal."""
    lines = [row.cells() for row in rows]
    widths = [max(len(line[at]) for line in (HEAD, *lines)) for at in range(len(HEAD))]
    out = ["  ".join(cell.ljust(width) for cell, width in zip(HEAD, widths, strict=True)).rstrip()]
    group = ""
    for row, cells in zip(rows, lines, strict=True):
        if row.group != group:
            group = row.group
            out += ["", group]
        out.append("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    return "\n".join(out) + "\n"


def as_markdown(rows: Sequence[Row], note: str = "") -> str:
    """For a file: one table a group, below a `note` if there is one."""
    out: list[str] = []
    group = ""
    for row in rows:
        if row.group != group:
            group = row.group
            out += ["", f"## {group}", "", *([note, ""] if note else []), "| | ratio | measured | target | |"]
            out.append("|---|---|---|---|---|")
        out.append("| " + " | ".join(row.cells()) + " |")
    return "\n".join(out) + "\n"


def with_sections(text: str, rows: Sequence[Row], note: str) -> str:
    """Return the `text` of a file with the groups of these rows in place of those that it has, or at its end.

    `note`: when and where they were measured, which is not what the file says of the others.
    """
    before, *sections = text.split("\n## ")
    held = {section.partition("\n")[0]: section.rstrip("\n") for section in sections}
    _, *new = as_markdown(rows, note).split("\n## ")
    held.update((section.partition("\n")[0], section.rstrip("\n")) for section in new)
    return "\n\n## ".join([before.rstrip("\n"), *held.values()]) + "\n"
