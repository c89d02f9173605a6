"""Each category has one color: in notebooks and comparisons, on the page, and in the drawing of the concepts."""

from __future__ import annotations

import re
from pathlib import Path

from otel_goodput._accounting.totals import COLORS
from otel_goodput.semconv import CATEGORIES

ROOT = Path(__file__).parents[2]
SLATE = "#64748b"  # of the jobs in the drawing, which are no category


def test_every_category_has_a_color_of_its_own() -> None:
    assert list(COLORS) == list(CATEGORIES)
    assert len(set(COLORS.values())) == len(COLORS)


def test_the_page_has_the_same_colors() -> None:
    script = (ROOT / "otel_goodput" / "_viewer" / "assets" / "colors.js").read_text(encoding="utf-8")
    table = script.partition("CATEGORY_COLORS = {")[2].partition("};")[0]
    assert dict(re.findall(r'(\w+): \["(#[0-9a-f]{6})"', table)) == COLORS


def test_the_drawing_has_the_same_colors_and_a_legend() -> None:
    drawing = (ROOT / "docs" / "concepts.svg").read_text(encoding="utf-8")
    used = set(re.findall(r'<rect [^>]*fill="(#[0-9a-f]{6})"', drawing)) - {SLATE}
    names = {color: name.replace("_", " ") for name, color in COLORS.items()}
    legend = re.findall(r'width="12" height="12" rx="2" fill="(#[0-9a-f]{6})"/>\n<text[^>]*>([^<]+)<', drawing)
    assert dict(legend) == {color: names[color] for color in used}
