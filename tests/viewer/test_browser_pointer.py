"""The mouse on the timeline and the charts, what is selected, and what is shared by a link."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

import otel_goodput as goodput
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._recording.ids import attempt_trace_id, step_trace_id
from otel_goodput._timeline.reader import all_events

from .browser import Look, looking, rows
from .conftest import page_of


def facts(look: Look) -> dict[str, int]:
    return {one["fact"]: int(one["ns"]) for one in look.data("#selection dd[data-ns]")}


def show(look: Look, kind: str, row: int) -> tuple[float, float]:
    """Bring a span into sight; its middle, in the window."""
    look.js("goodput.timeline.centre({kind: given[0], row: given[1], process: 0})", [kind, row])
    look.js("goodput.timeline.select(null)")
    look.settle()
    return look.span(kind, row)


def test_the_wheel_zooms_at_the_pointer_and_scrolls_lanes_with_shift(timeline: Look) -> None:
    mouse = timeline.page.mouse
    timeline.page.set_viewport_size({"width": 1280, "height": 560})  # too low for all lanes
    timeline.until("goodput.timeline.height < 450")
    timeline.at_timeline()
    mouse.move(*timeline.place(300, 150))
    before, at = timeline.view(), timeline.js("goodput.timeline.timeAt(300)")
    mouse.wheel(0, -400)
    timeline.until("goodput.state.view !== null")
    after = timeline.view()
    assert after[1] - after[0] < before[1] - before[0]
    assert timeline.js("goodput.timeline.timeAt(300)") == pytest.approx(at, rel=1e-6)
    page = timeline.js("scrollY")
    timeline.page.keyboard.down("Shift")
    mouse.wheel(0, 200)
    timeline.until("goodput.timeline.scroll > 0")
    timeline.page.keyboard.up("Shift")
    assert timeline.view() == after and timeline.js("scrollY") == page
    mouse.wheel(100, 0)
    timeline.until("goodput.timeline.view()[0] > given", after[0])


def test_a_drag_moves_the_view_and_shift_drag_selects_a_range(timeline: Look) -> None:
    mouse = timeline.page.mouse
    timeline.press("w", "w", "w")
    before = timeline.view()
    x, y = timeline.place(400, 150)
    mouse.move(x, y)
    mouse.down()
    mouse.move(x - 50, y)
    mouse.move(x - 100, y)
    mouse.up()
    wide = timeline.js("goodput.timeline.width")
    assert timeline.view()[0] == pytest.approx(before[0] + 100 / wide * (before[1] - before[0]))
    assert timeline.state("selected") is None
    for shift, height in ((True, 150), (False, 35)):  # with Shift on the lanes, or without on the scale
        timeline.press("Escape")
        timeline.settle()  # the bar of the range before is gone, and nothing moves any more
        x, y = timeline.place(200, height)
        edges = [round(timeline.js("goodput.timeline.timeAt(given)", at)) for at in (200, 450)]
        if shift:
            timeline.page.keyboard.down("Shift")
        mouse.move(x, y)
        mouse.down()
        mouse.move(x + 100, y)
        mouse.move(x + 250, y)
        mouse.up()
        timeline.page.keyboard.up("Shift")
        timeline.until("goodput.state.range !== null")
        assert timeline.state("range") == pytest.approx(edges, rel=1e-6)
        timeline.settle()
        length = timeline.state("range")[1] - timeline.state("range")[0]
        for panel in ("#partition .piece[data-category]", "#selection [data-category]"):
            assert sum(int(one["ns"]) for one in timeline.data(panel)) == length
        assert "Selected" in timeline.text("#range-bar")
    timeline.page.click("#range-clear")
    assert timeline.state("range") is None


def test_a_click_selects_what_the_journal_has(timeline: Look, story: RunDirectory) -> None:
    events, origin = list(all_events(story)), int(timeline.js("goodput.model.origin_ns"))
    attempts = [event.time for event in events if event.kind == ev.ATTEMPT]
    for kind, table, number in (("step", "steps", 42), ("step", "steps", 100), ("phase", "phases", 50)):
        timeline.page.mouse.click(*show(timeline, kind, number))
        timeline.until("goodput.state.selected?.kind === given", kind)
        row = timeline.state("selected")["row"]
        shown = facts(timeline)
        start, wall = timeline.column(table, "start")[row], timeline.column(table, "wall")[row]
        assert (shown["begin"], shown["end"]) == (start, start + wall)
        [begun] = [one for one in events if one.kind == ev.START and one.time == origin + start and is_of(one, kind)]
        life = sum(time <= begun.time for time in attempts)
        ended = [one for one in events if one.kind == ev.END and one.key == begun.key and one.time >= begun.time]
        assert shown["end"] == ended[0].time - origin
        words = {one["fact"]: text for one, text in rows(timeline)}
        assert words["span id"].startswith(f"{begun.key:016x}")
        assert words["trace id"].startswith(f"{attempt_trace_id('story', life - 1):032x}")
        assert words["attempt"] == str(life)


def is_of(event: Any, kind: str) -> bool:
    return event.phase == rules.STEP if kind == "step" else event.phase not in (rules.STEP, rules.JOB)


def test_a_double_click_zooms_to_a_span_and_an_empty_place_selects_nothing(timeline: Look) -> None:
    x, y = show(timeline, "step", 60)
    timeline.page.mouse.dblclick(x, y)
    wall = timeline.column("steps", "wall")[60]
    timeline.until("Math.abs(goodput.timeline.view()[1] - goodput.timeline.view()[0] - given) < 2", 1.5 * wall)
    timeline.press("0")
    row = next(one for one in timeline.js("goodput.timeline.lanes()") if one["name"] == "all attempts")
    timeline.page.mouse.click(*timeline.place(100, row["y"] + 5))
    timeline.until("goodput.state.selected === null")


def test_ids_are_copied(chromium: Any, story_page: Path) -> None:
    with looking(chromium, permissions=["clipboard-read", "clipboard-write"]) as look:
        look.open(story_page)
        look.js("goodput.timeline.select({kind: 'step', row: 7, process: 0})")
        for label in ("trace id", "span id"):
            shown = {one["fact"]: text for one, text in rows(look)}[label]
            look.page.click(f"#selection button[aria-label='Copy {label}']")
            look.until("[...document.querySelectorAll('.copy')].some((one) => one.textContent === 'Copied')")
            copied = look.page.evaluate("navigator.clipboard.readText()")
            assert copied and shown.startswith(copied) and len(copied) in (16, 32)
            look.until("![...document.querySelectorAll('.copy')].some((one) => one.textContent === 'Copied')")


def test_the_tree_opens_closes_pins_and_sorts(timeline: Look) -> None:
    count = timeline.js("goodput.timeline.tree.rows.length")
    row = timeline.page.locator(".tree-row", has_text="process 0").first
    row.locator(".tree-caret").click()
    timeline.until("goodput.timeline.tree.rows.length < given", count)
    timeline.page.locator(".tree-row", has_text="process 0").first.dblclick()
    timeline.until("goodput.timeline.tree.rows.length === given", count)
    steps = timeline.page.locator(".tree-row", has_text="steps").first
    steps.hover()
    steps.locator(".tree-pin").click()
    timeline.until("goodput.timeline.lanes()[0].pinned")
    timeline.page.select_option("#process-order", "lateness")
    timeline.until("goodput.timeline.tree.order === 'lateness'")
    assert timeline.js("goodput.timeline.lanes()[0].name") == "steps"  # pins stay


def test_a_click_on_the_heat_map_opens_that_rank(timeline: Look) -> None:
    heat = timeline.page.locator("#heatmap canvas")
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    high = (box["height"] - 20) / timeline.js("goodput.model.processes.length")
    timeline.page.mouse.click(box["x"] + 300, box["y"] + 2.5 * high)
    timeline.until("goodput.state.process === 2")
    timeline.until("goodput.timeline.activeRow().title === 'process 2'")
    timeline.settle()
    [row] = [one for one in timeline.js("goodput.timeline.lanes()") if one["name"] == "process 2"]
    assert 0 <= row["y"] < timeline.js("goodput.timeline.height")
    heat.focus()
    timeline.press("ArrowDown", "ArrowRight", "Enter")
    timeline.until("goodput.state.process === 1")


def test_what_the_lanes_show_is_what_is_hovered(timeline: Look) -> None:
    x, y = show(timeline, "step", 30)
    timeline.page.mouse.move(x, y)
    timeline.until("document.querySelector('.tl-tip').textContent.includes(`step ${given}`)", 30)
    timeline.page.mouse.move(5, 5)
    timeline.until("document.querySelector('.tl-tip').hidden")


def test_every_column_of_the_partition_lane_is_full(timeline: Look) -> None:
    painted = """(() => {
        const {timeline} = goodput;
        timeline.draw();
        const lane = timeline.lanes().find((one) => one.name === "partition");
        const {surface} = timeline;
        const ratio = surface.width / timeline.width;
        const y = Math.round((lane.y + lane.height - 3) * ratio);
        const [left, right] = [0, goodput.model.end].map((time) => Math.floor(timeline.frame.x(time)));
        let empty = 0;
        for (let x = Math.max(1, left + 1); x < Math.min(surface.width, right - 1); x++)
            if (surface.pixels[y * surface.width + x] === surface.background) empty += 1;
        return empty;
    })()"""
    assert timeline.js(painted) == 0
    for _ in range(12):
        timeline.press("w")
        assert timeline.js(painted) == 0


def test_a_shared_link_shows_the_same(timeline: Look, story_page: Path, chromium: Any) -> None:
    timeline.page.select_option("#own-charts select", index=1)
    timeline.page.click("#add-chart")
    timeline.page.locator("#top-k tr[data-name='eval'] button", has_text="+ chart").click()
    timeline.until("goodput.state.charts.length === 2")
    timeline.page.wait_for_selector("#own-charts .own-chart:nth-child(2) canvas")
    timeline.js("goodput.timeline.select({kind: 'step', row: 50, process: 0})")
    timeline.press("f")
    timeline.js("goodput.state.set({range: [5e9, 9e9], category: 1})")
    timeline.until("decodeURIComponent(location.hash) === decodeURIComponent('#' + goodput.state.toHash())")
    address = timeline.page.url
    same = "[goodput.state.toHash(), document.getElementById('selection').innerText, goodput.timeline.view()]"
    expected = timeline.js(same)
    with looking(chromium) as other:
        other.open(story_page, address.partition("#")[2])
        assert other.js(same) == expected
        assert other.page.locator("#own-charts .own-chart").count() == 2
        assert other.text("#range-bar") == timeline.text("#range-bar")


def test_a_shared_link_names_every_kind_of_thing(timeline: Look, story_page: Path, chromium: Any) -> None:
    """By what it is, not by the number of its row."""
    same = "document.getElementById('selection').innerText"
    select = """(goodput.timeline.select(given), document.querySelector('#selection h3') !== null)"""
    kinds = []
    for kind in ("step", "phase", "disruption", "save", "bin", "steps", "owner", "attempt", "notice", "slice"):
        if not timeline.js(select, {"kind": kind, "row": 0, "process": 0}):
            continue
        row = 1 if timeline.js(select, {"kind": kind, "row": 1, "process": 0}) else 0
        timeline.js("goodput.timeline.select(given)", {"kind": kind, "row": row, "process": 0})
        hash_ = timeline.js("goodput.state.toHash()")
        assert '"row"' not in unquote(hash_)
        with looking(chromium) as other:
            other.open(story_page, hash_)
            assert other.state("selected") == {"kind": kind, "row": row, "process": 0}
            assert other.js(same) == timeline.js(same)
        kinds.append(kind)
    assert set(kinds) == {"step", "phase", "disruption", "save", "bin", "steps", "owner", "attempt", "notice", "slice"}
    timeline.at_timeline()
    timeline.press("Escape")
    assert "selected" not in timeline.js("goodput.state.toHash()")


@pytest.mark.parametrize("old", ['{"kind":"step","row":5}', '{"kind":"step","process":0,"begin":1,"title":"step 5"}'])
def test_a_link_to_what_is_not_there_selects_nothing(story_page: Path, chromium: Any, old: str) -> None:
    with looking(chromium) as look:
        look.open(story_page, f"selected={quote(old)}")
        assert look.state("selected") is None


def test_show_me_leads_to_the_largest_loss(timeline: Look) -> None:
    timeline.page.click("#show-me")
    source = timeline.js("goodput.model.categories[goodput.state.category].name")
    assert source == timeline.js("goodput.model.verdict_source.category")
    timeline.page.wait_for_selector("#intervals")
    owners = timeline.js(
        """[...goodput.model.owners.begin].map((begin, row) => [begin, goodput.model.owners.length[row]])
        .filter((_, row) => goodput.model.owners.category[row] === goodput.state.category)"""
    )
    begin, end = timeline.view()
    assert all(begin <= first and first + length <= end for first, length in owners)
    pieces = timeline.page.locator("#partition .piece[data-category]:not(.dim)")
    assert pieces.count() == 1 and pieces.first.get_attribute("data-category") == source
    timeline.page.locator("#intervals button", has_text="Clear").click()
    timeline.until("goodput.state.category === null && !document.getElementById('intervals')")


def test_dragging_on_a_chart_selects_for_all_panels(timeline: Look) -> None:
    over = timeline.page.locator("#shares .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    timeline.page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 50)
    timeline.page.mouse.down()
    timeline.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60, steps=3)
    timeline.page.mouse.up()
    timeline.until("goodput.state.range !== null")
    begin, end = timeline.state("range")
    assert [begin, end] == pytest.approx(
        [0.25 * timeline.js("goodput.model.end"), 0.5 * timeline.js("goodput.model.end")], rel=0.02
    )
    assert timeline.view() == [begin, end]
    timeline.settle()
    timeline.page.locator("#shares .u-over").dblclick()
    timeline.until("goodput.state.range === null")


def test_a_step_shows_the_trace_that_it_was_exported_to(chromium: Any, tmp_path: Path) -> None:
    recorder = goodput.Recorder("own", run_id="own", directory=tmp_path, exporters="none", step_traces="own")
    with recorder.job():
        for number in range(3):
            with recorder.step(number):
                pass
    recorder.shutdown()
    page = page_of(RunDirectory(tmp_path / "own"), tmp_path / "own.html")
    with looking(chromium) as look:
        look.open(page)
        for row in range(3):
            look.js("goodput.timeline.select({kind: 'step', row: given, process: 0})", row)
            words = {one["fact"]: text for one, text in rows(look)}
            assert words["trace id"].startswith(f"{step_trace_id('own', 0, row):032x}")
        look.js("goodput.timeline.select({kind: 'attempt', row: 0})")
        words = {one["fact"]: text for one, text in rows(look)}
        assert words["trace id"].startswith(f"{attempt_trace_id('own', 0):032x}")
