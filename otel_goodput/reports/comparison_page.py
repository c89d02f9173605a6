"""A comparison of two runs as one HTML page that needs nothing else: no scripts, no requests; all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from otel_goodput._accounting.totals import COLORS
from otel_goodput._text.quantities import format_duration
from otel_goodput._text.redact import shown
from otel_goodput.reports import comparison_text as text
from otel_goodput.reports.comparison import Comparison, Side

_WIDTH: Final = 720  # of a chart, in its own units
_HEIGHT: Final = 160
_A: Final = "#1565c0"
_B: Final = "#ef6c00"
_STYLE: Final = f"""
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
.verdict {{ font-size: 1.25rem; }}
.note {{ border-left: .25rem solid #f9a825; padding-left: .75rem; }}
table {{ border-collapse: collapse; margin: 1.25rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .2rem .75rem; text-align: right; border-bottom: 1px solid #8884; }}
th:first-child, td:first-child {{ text-align: left; }}
svg {{ width: 100%; height: auto; }} svg text {{ fill: currentColor; font-size: 12px; }}
.legend {{ display: inline-block; margin-right: 1rem; }}
.a {{ color: {_A}; }} .b {{ color: {_B}; }} .a, .b {{ font-weight: 600; }}
@media (prefers-color-scheme: dark) {{ .a {{ color: #64b5f6; }} .b {{ color: #ffb74d; }} }}
"""


def render(comparison: Comparison) -> str:
    """Return the page."""
    title = f"{comparison.a.answer['run_id']} and {comparison.b.answer['run_id']} compared"
    body = [
        f"<h1>{_escaped(title)}</h1>",
        f'<p><span class="a">A</span>: {_escaped(text.about(comparison.a))}<br>',
        f'<span class="b">B</span>: {_escaped(text.about(comparison.b))}</p>',
        f'<p class="verdict" id="verdict">{_escaped(comparison.verdict)}</p>',
        *(f'<p class="note">{_escaped(remark)}</p>' for remark in text.remarks(comparison)),
        *(_bar(name, side) for name, side in (("A", comparison.a), ("B", comparison.b))),
        _legend(comparison.a, comparison.b),
        _table("main", text.MAIN, text.main_rows(comparison)),
        _histogram(comparison),
        _table("steps", text.STEPS, text.step_rows(comparison)),
        _table("sources", text.SOURCES, text.source_rows(comparison)),
        *(
            [_table("configuration", text.CONFIGURATIONS, text.configuration_rows(comparison))]
            if comparison.differences
            else ()
        ),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width">'
        f"<title>{_escaped(title)}</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _escaped(words: str) -> str:
    return escape(shown(words))


def _table(name: str, titles: text.Row, rows: Iterable[text.Row]) -> str:
    head = "".join(f'<th scope="col">{_escaped(cell)}</th>' for cell in titles)
    lines = "".join("<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table id="{name}"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'


def _bar(name: str, side: Side) -> str:
    """The partition of a run as a bar; nothing if it is not known."""
    pieces: list[str] = []
    at = 0.0
    for category, held in side.answer["seconds"].items():
        seconds = sum(held.values()) if isinstance(held, dict) else held
        share = side.share(seconds)
        if not share:
            continue
        label = _escaped(f"{category} {100 * share:.2f} %")
        pieces.append(
            f'<rect x="{_WIDTH * at:.2f}" y="0" width="{_WIDTH * share:.2f}" height="22" fill="{COLORS[category]}">'
            f"<title>{label}</title></rect>"
        )
        at += share
    if not pieces:
        return ""
    return (
        f'<svg viewBox="-16 0 {_WIDTH + 16} 24" role="img" aria-label="{name}: where the time went">'
        f'<text x="-14" y="16">{name}</text>{"".join(pieces)}</svg>'
    )


def _legend(*sides: Side) -> str:
    """The colors of the categories in the bars."""
    shown_in = {
        category
        for side in sides
        for category, held in side.answer["seconds"].items()
        if side.share(sum(held.values()) if isinstance(held, dict) else held)
    }
    return "".join(
        f'<span class="legend"><span style="color:{color}">&#9632;</span> {category.replace("_", " ")}</span> '
        for category, color in COLORS.items()
        if category in shown_in
    )


def _histogram(comparison: Comparison) -> str:
    """The net step times of both runs, each as shares of its own steps, over a logarithmic axis; empty without any."""
    buckets = comparison.histogram()
    if not buckets:
        return ""
    totals = [max(1, sum(bucket[place] for bucket in buckets)) for place in (2, 3)]
    rows = [(low, high, a / totals[0], b / totals[1]) for low, high, a, b in buckets]
    most = max(max(a, b) for _, _, a, b in rows)
    width = _WIDTH / len(rows)
    bars = []
    for at, (low, high, *shares) in enumerate(rows):
        span = _escaped(f"{format_duration(low / 1e9)} to {format_duration(high / 1e9)}")
        for place, (name, color, share) in enumerate(zip("AB", (_A, _B), shares, strict=True)):
            tall = _HEIGHT * share / most
            bars.append(
                f'<rect x="{at * width + place * width / 2:.2f}" y="{_HEIGHT - tall:.2f}" width="{width / 2:.2f}" '
                f'height="{tall:.2f}" fill="{color}"><title>{name}: {100 * share:.2f} % of steps take {span}</title>'
                "</rect>"
            )
    # Buckets without a step are left out, so labels name the bucket below them rather than a position on an axis.
    every = max(1, len(rows) // 6)
    labels = "".join(
        f'<text x="{at * width:.1f}" y="{_HEIGHT + 16}">{_escaped(format_duration(rows[at][0] / 1e9))}</text>'
        for at in range(0, len(rows), every)
    )
    return (
        '<h2>Net step times, share of steps</h2><p><span class="a">A</span> and <span class="b">B</span>; buckets '
        f'without a step are left out.</p><svg id="histogram" viewBox="0 0 {_WIDTH} {_HEIGHT + 22}" role="img" '
        f'aria-label="histogram of net step times">{"".join(bars)}{labels}</svg>'
    )
