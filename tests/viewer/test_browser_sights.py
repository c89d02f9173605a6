"""How the page looks: light and dark, narrow and wide, on paper; and the pictures in ``docs/``."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.commands import ROOT, environment
from waits import until

from otel_goodput._journal.rundir import RunDirectory

from .browser import Look, looking
from .conftest import page_of

MOST_BYTES = 300_000  # of a picture in docs/

# Neighbours that must not lie over one another, and texts that must not be cut.
OVERLAPS = """(() => {
    const faults = [];
    const cards = [...document.querySelectorAll(".card")].filter((one) => one.checkVisibility());
    const boxes = cards.map((one) => one.getBoundingClientRect());
    boxes.forEach((one, at) => boxes.slice(at + 1).forEach((other, behind) => {
        const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
        const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
        if (across > 1 && down > 1) faults.push(`${cards[at].id} over ${cards[at + 1 + behind].id}`);
    }));
    for (const card of cards) {
        const box = card.getBoundingClientRect();
        for (const one of card.querySelectorAll("button, input, select, h2, td, th, .chart, canvas")) {
            if (!one.checkVisibility() || one.closest(".scroll, .facts, .unseen, dialog, .search-list, #tree")) continue;
            const inner = one.getBoundingClientRect();
            if (inner.width && (inner.right > box.right + 1 || inner.left < box.left - 1))
                faults.push(`${one.outerHTML.slice(0, 80)} leaves ${card.id}`);
        }
        const parts = [...card.querySelectorAll(".card-head > *, .tools > *")].filter((one) => one.checkVisibility());
        parts.forEach((one, at) => parts.slice(at + 1).forEach((other) => {
            if (one.contains(other)) return;
            const [first, second] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
            const across = Math.min(first.right, second.right) - Math.max(first.left, second.left);
            const down = Math.min(first.bottom, second.bottom) - Math.max(first.top, second.top);
            if (across > 1 && down > 1) faults.push(`${one.outerHTML.slice(0, 60)} over ${other.outerHTML.slice(0, 60)}`);
        }));
    }
    return faults;
})()"""

# Contrast (WCAG) of the words that are seen, of those in plain colours.
FAINT = """(() => {
    const parts = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
        .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
        .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (one) => {
        for (let at = one; at; at = at.parentElement) {
            const style = getComputedStyle(at);
            if (style.backgroundImage !== "none") return null;
            const color = parts(style.backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
        }
        return [255, 255, 255];
    };
    const faults = new Set();
    for (const one of document.querySelectorAll("body *")) {
        const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || !one.checkVisibility({opacityProperty: true, visibilityProperty: true}) || one.closest(":disabled, .dim, .tree-pin"))
            continue;
        const under = ground(one);
        if (!under) continue;
        const [high, low] = [light(parts(getComputedStyle(one).color)), light(under)].sort((a, b) => b - a);
        if ((high + 0.05) / (low + 0.05) < 4.5) faults.add(`${one.className} ${one.textContent.slice(0, 30)}`);
    }
    return [...faults];
})()"""


@pytest.mark.parametrize(
    ("wide", "scheme"),
    [
        (1280, "light"),
        pytest.param(1280, "dark", marks=pytest.mark.release),
        pytest.param(2560, "light", marks=pytest.mark.release),
        (2560, "dark"),
    ],
)
def test_nothing_is_cut_or_covered(chromium: Any, story_page: Path, wide: int, scheme: str) -> None:
    with looking(chromium, viewport={"width": wide, "height": 1000}, color_scheme=scheme) as look:
        look.open(story_page)
        assert look.js("document.documentElement.dataset.theme") == scheme
        assert look.js("document.documentElement.scrollWidth <= innerWidth")
        assert look.js(OVERLAPS) == []
        look.page.locator("#top-k button", has_text="+ chart").first.click()
        look.page.locator("#histogram .column:not(:disabled)").first.click()
        look.js("goodput.timeline.select({kind: 'step', row: 50, process: 0})")
        look.page.click("#show-me")
        look.js("goodput.state.set({range: [5e9, 9e9]})")
        look.settle()
        assert look.js("document.documentElement.scrollWidth <= innerWidth")
        assert look.js(OVERLAPS) == []
        assert look.js(FAINT) == []


def test_the_width_may_change_at_any_time(story_page: Path, look: Look) -> None:
    look.open(story_page)
    for wide in (2560, 1280, 1600):
        look.page.set_viewport_size({"width": wide, "height": 900})
        look.until(
            "document.querySelector('#shares .uplot').clientWidth <= document.getElementById('shares').clientWidth + 1"
        )
        look.until("Math.abs(goodput.timeline.width + 12 - document.getElementById('timeline').clientWidth) < 2")
        assert look.js("document.documentElement.scrollWidth <= innerWidth")


def test_the_last_words_of_an_axis_are_whole(chromium: Any, lived_page: Path) -> None:
    """Half a label fits next to the end of the axis, wherever its last tick is."""
    with looking(chromium) as look:
        look.open(lived_page)
        for canvas in ("#shares", "#cadence", "#checkpoints"):
            room = look.js(
                """((chart) => chart.querySelector('canvas').clientWidth - chart.querySelector('.u-over').offsetLeft
                - chart.querySelector('.u-over').clientWidth)(document.querySelector(given + ' .uplot'))""",
                canvas,
            )
            words = look.js(
                """((context) => (context.font = "12px system-ui, sans-serif", context.measureText("+00:00:00.000").width))
                (document.createElement("canvas").getContext("2d"))"""
            )
            assert room >= words / 2, canvas


def test_settings_change_colours_and_clock_and_stay(story_page: Path, look: Look) -> None:
    look.open(story_page)
    canvas = "document.querySelector('#timeline canvas').toDataURL()"
    light = look.js(canvas)
    look.page.click("#settings [data-choice=dark]")
    look.until("document.documentElement.dataset.theme === 'dark'")
    assert look.js(canvas) != light
    look.page.click("#theme")
    look.until("document.documentElement.dataset.theme === 'light'")
    look.page.click("#settings [data-choice=utc]")
    look.until("document.getElementById('disruptions').innerText.includes('UTC')")

    def stays(*choices: str) -> bool:
        """In a document that is loaded anew. Chromium hands what is stored on to it in its own time."""
        look.page.reload()
        look.page.wait_for_selector("html[data-ready=yes]")
        chosen = (look.page.get_attribute(f"#settings [data-choice={one}]", "aria-pressed") for one in choices)
        return set(chosen) == {"true"}

    until(lambda: stays("utc", "light"))


def test_the_clock_is_switched_at_the_top(story_page: Path, look: Look) -> None:
    """From the start, in UTC, in the reader's own time zone, and around again."""
    look.open(story_page)

    def shown() -> tuple[str, str]:
        return look.text("#clock"), look.text("#disruptions tbody td")

    ways = []
    for _ in range(4):
        ways.append(shown())
        before = shown()
        look.page.click("#clock")
        until(lambda before=before: all(one != old for one, old in zip(shown(), before, strict=True)))
    assert [way for way, _ in ways] == ["From the start", "UTC", "Local time", "From the start"]
    (_, start), (_, utc), (_, local), (_, again) = ways
    assert start.startswith("+") and again == start
    assert utc.endswith(" UTC") and utc[:4].isdigit()
    assert "UTC+" in local or "UTC-" in local


def test_the_slowest_steps_are_listed_and_lead_to_the_timeline(story_page: Path, look: Look) -> None:
    look.open(story_page)
    times = look.js(
        """(() => { const {steps} = window.goodput.model; return [...Array(steps.rows).keys()]
        .filter((row) => steps.wall[row] >= 0 && steps.net[row] > 0)
        .sort((one, other) => steps.net[other] - steps.net[one]).map((row) => steps.number[row]); })()"""
    )
    listed = look.js(
        "[...document.querySelectorAll('#slowest-steps tbody tr td:first-child')].map((td) => td.innerText)"
    )
    assert listed == [f"step {number}" for number in times[: len(listed)]] and len(listed) == min(10, len(times))
    look.page.click("#slowest-steps tbody tr:first-child button")
    look.until(f"document.getElementById('selection').innerText.includes('{times[0]}')")


def words_of(pdf: bytes) -> int:
    """How many marks of text a PDF's pages show."""
    shown = 0
    for match in re.finditer(rb"stream\r?\n", pdf):
        try:
            shown += len(re.findall(rb"T[jJ]\b", zlib.decompressobj().decompress(pdf[match.end() :])))
        except zlib.error:
            continue
    return shown


def test_it_is_printed_to_a_readable_paper(chromium: Any, story_page: Path, tmp_path: Path) -> None:
    with looking(chromium, color_scheme="dark") as look:
        look.open(story_page)
        dark = look.js("getComputedStyle(document.body).backgroundColor")
        path = tmp_path / "page.pdf"
        look.page.pdf(path=path, prefer_css_page_size=True, print_background=True)
        content = path.read_bytes()
        pages = len(re.findall(rb"/Type\s*/Page\b", content))
        assert 2 <= pages <= 8
        assert words_of(content) > 200
        assert len(content) > 50_000  # the charts are on it
        # Afterwards it looks as it did before.
        look.until(
            "document.documentElement.dataset.theme === 'dark' && !document.documentElement.classList.contains('paper')"
        )
        assert look.js("getComputedStyle(document.body).backgroundColor") == dark
        look.page.emulate_media(media="print")
        assert look.page.is_hidden("#top") and look.page.is_visible("#partition-table")


# --- the pictures in docs/ --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A page, and the folder that its pictures go to: the demo's and docs/ where they are asked for."""
    place = tmp_path_factory.mktemp("pictures")
    if not request.config.getoption("--write-screenshots"):
        yield request.getfixturevalue("story_page"), place
        return
    demo = [sys.executable, str(ROOT / "examples" / "preempted.py")]
    subprocess.run(demo, cwd=place, env=environment(), check=True, timeout=280)
    [run] = [path.parent for path in place.rglob("run.json")]
    yield page_of(RunDirectory(run), place / "demo.html"), ROOT / "docs"


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.release)])
def test_pictures_of_the_page(chromium: Any, pictured: tuple[Path, Path], scheme: str) -> None:
    page, folder = pictured
    with looking(chromium, color_scheme=scheme, viewport={"width": 1280, "height": 860}) as look:
        look.open(page)
        look.settle()
        written = [folder / f"viewer-{scheme}.png"]
        look.page.screenshot(path=written[0])
        if scheme == "light":
            row = len(look.column("steps", "start")) // 3
            look.js("goodput.timeline.select({kind: 'disruption', row: 0, process: 0})")
            look.settle()
            assert row
            look.page.locator("#timeline-card").scroll_into_view_if_needed()
            written.append(folder / "viewer-timeline.png")
            look.page.locator("#timeline-card").screenshot(path=written[1])
        for path in written:
            assert 20_000 < path.stat().st_size < MOST_BYTES, path.name
