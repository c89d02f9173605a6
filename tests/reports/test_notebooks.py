"""What a notebook and an interpreter show of a report and of totals."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from accounting.stories import story
from timelines import timeline_totals

from otel_goodput._accounting import Event, Ledger, Totals
from otel_goodput._accounting import events as ev
from otel_goodput._journal.notes import Note
from otel_goodput.reports.report import Report, about
from otel_goodput.semconv import FALLBACK_CLOCKS, PHASES, ClockState, Phase

NS = 1_000_000_000
STORY = "job 0-100 / prep 0-10 / step 0 @10-40 / custom eval 40-60 / step 1 @60-100"
EVIL = "<script>alert(1)</script>\x1b[2J\"'&"


class Page(HTMLParser):
    """The tags, the text, and the widths of the bar's pieces."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.widths: list[float] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        style = dict(attrs).get("style") or ""
        if "inline-block" in style:
            self.widths.append(float(style.partition("width:")[2].partition("%")[0]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def unknown() -> Totals:
    """Ten steps of which nobody knows when the device was done."""
    ledger = Ledger()
    job, step = (PHASES.index(phase) for phase in (Phase.JOB, Phase.STEP))
    ledger.feed([Event(0, ev.ATTEMPT, step=0), Event(1, ev.CLOCK, FALLBACK_CLOCKS.index(ClockState.UNKNOWN))])
    ledger.feed([Event(1, ev.START, job, key=1)])
    for number in range(10):
        ledger.feed([Event(number * NS + 2, ev.START, step, 100 + number, number)])
        ledger.feed([Event((number + 1) * NS, ev.END, 0, 100 + number)])
    return ledger.totals(10 * NS)


def test_a_bar_a_table_and_the_sentence() -> None:
    totals = timeline_totals(story(STORY))
    report = Report(totals, about("run", "trained"))
    page = Page(report._repr_html_())
    assert set(page.tags) <= {"div", "p", "strong", "span", "table", "tr", "td"}
    assert page.widths == [70.0, 20.0, 10.0]
    assert page.words[0].startswith("Goodput of trained") and page.words[0].endswith("70.00 % of 1 min 40 s")
    for word in ("productive", "70.000 s", "70.00 %", "custom eval", "training_prep"):
        assert word in page.words
    assert str(report).splitlines()[-1].strip() in page.words
    shown = Page(totals._repr_html_())
    assert shown.widths == page.widths and shown.words[0] == "Goodput: 70.00 % of 100.000 s"


def test_nothing_in_it_is_markup_of_somebody_elses() -> None:
    name = EVIL.replace(" ", "_")
    totals = timeline_totals([*story("job 0-10"), {"kind": "custom", "name": name, "start": 1, "end": 9}])
    report = Report(totals, about(EVIL, EVIL), [Note("kind", EVIL)])
    for html in (report._repr_html_(), totals._repr_html_()):
        assert "<script" not in html
        assert any("<script>alert(1)</script>" in word for word in Page(html).words)
    assert "\x1b" not in report._repr_html_() and "\x1b" not in repr(report)


def test_what_is_not_known_has_no_shares() -> None:
    totals = unknown()
    report = Report(totals, about("run", "asynchronous"))
    for html in (report._repr_html_(), totals._repr_html_()):
        assert Page(html).widths == [] and "not known: dispatch only" in html
    assert "%" not in "".join(Page(report._repr_html_()).words)


def test_the_text_gives_no_figures_of_what_is_not_known() -> None:
    report = Report(unknown(), about("run", "asynchronous"))
    text = str(report)
    assert "  goodput not known: dispatch only; elapsed time 10.0 s\n" in text
    assert "%" not in text and "at risk" not in text and "net time" not in text
    assert "goodput.observe(loss)" in text and "OTEL_GOODPUT_DEVICE_CLOCK=host" in text
    assert "largest loss" not in text and "10 started = 10 kept + 0 lost" in text
    answer = report.to_json()
    assert answer["goodput"] is None and answer["reason"] == "not known: dispatch only"
    assert [note["kind"] for note in answer["warnings"]] == ["clock"]


def test_advice_fits_what_was_seen() -> None:
    """Nobody needs a compilation cache where nothing is compiled."""
    plain = str(Report(timeline_totals(story("job 0-100 / step 0 @0-80 / step 1 @80-90 / step 2 @90-100")), {}))
    assert (
        "cache" not in plain and "(program_startup)" in plain and "was spent before steps reached their usual" in plain
    )
    compiled = str(Report(timeline_totals(story("job 0-100 / compile train 0-80 / step 0 @80-100")), {}))
    assert "was spent compiling (program_startup); a persistent compilation cache" in compiled


@pytest.mark.parametrize("text", ["", "job 0-", STORY])
def test_what_an_interpreter_shows(text: str) -> None:
    totals = timeline_totals(story(text)) if text else timeline_totals([])
    shown = repr(totals)
    assert shown.startswith("<Totals: ") and shown.endswith(">") and len(shown) < 160
    assert "\n" not in shown
    report = Report(totals, about("run", "trained"))
    assert repr(report).startswith("<Goodput of trained") and "\n" not in repr(report)
    Page(report._repr_html_())
    Page(totals._repr_html_())
    if text == STORY:
        assert "70.00 %" in shown and "2 steps = 2 kept + 0 lost + 0 pending" in shown
