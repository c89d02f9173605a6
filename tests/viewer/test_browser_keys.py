"""Every key of the timeline, and the page without a mouse."""

from __future__ import annotations

from pathlib import Path

import pytest

from .browser import Look


@pytest.fixture
def timeline(look: Look, story_page: Path) -> Look:
    """The page, with the focus on its timeline."""
    look.open(story_page)
    look.at_timeline()
    return look


def middle(view: list[float]) -> float:
    return (view[0] + view[1]) / 2


def width(view: list[float]) -> float:
    return view[1] - view[0]


def test_w_and_s_zoom_about_the_middle(timeline: Look) -> None:
    whole = timeline.view()
    for closer, away in (("w", "s"), ("W", "S"), ("+", "-"), ("=", "-")):
        timeline.press(closer, closer)
        near = timeline.view()
        assert width(near) == pytest.approx(width(whole) / 1.3**2)
        assert middle(near) == pytest.approx(middle(whole))
        timeline.press(away)
        assert width(timeline.view()) == pytest.approx(width(whole) / 1.3)
        timeline.press(away)
        assert timeline.view() == pytest.approx(whole)
    for _ in range(100):
        timeline.press("w")
    assert width(timeline.view()) == 100  # ns: as close as it gets
    timeline.press("0")
    assert timeline.view() == whole and timeline.state("view") is None


def test_a_d_and_arrows_pan_and_stop_at_the_ends(timeline: Look) -> None:
    whole = timeline.view()
    timeline.press("w", "w", "w", "w")
    before = timeline.view()
    for left, right in (("a", "d"), ("ArrowLeft", "ArrowRight")):
        timeline.press(left)
        moved = timeline.view()
        assert moved[0] == pytest.approx(before[0] - 0.15 * width(before))
        assert width(moved) == pytest.approx(width(before))
        timeline.press(right)
        assert timeline.view() == pytest.approx(before)
    timeline.press("Home")
    assert timeline.view()[0] == pytest.approx(whole[0])
    timeline.press("a")
    assert timeline.view()[0] == pytest.approx(whole[0])
    timeline.press("End")
    assert timeline.view()[1] == pytest.approx(whole[1])


def test_arrows_go_from_lane_to_lane_and_enter_opens_and_selects(timeline: Look) -> None:
    names = [row["name"] for row in timeline.js("goodput.timeline.tree.rows.map((row) => ({name: row.title}))")]
    assert timeline.js("goodput.timeline.activeRow().title") == names[0] == "run"
    timeline.press("ArrowDown", "ArrowDown")
    assert timeline.js("goodput.timeline.activeRow().title") == names[2]
    timeline.press("ArrowUp", "ArrowUp", "ArrowUp")
    assert timeline.js("goodput.timeline.activeRow().title") == "run"
    timeline.press("Enter")
    timeline.until("goodput.timeline.tree.rows.length === 1")
    timeline.press(" ")
    timeline.until("goodput.timeline.tree.rows.length === given", len(names))
    for _ in range(names.index("steps")):
        timeline.press("ArrowDown")
    timeline.press("Enter")
    assert timeline.state("selected")["kind"] == "step"
    timeline.press("PageDown", "PageDown", "PageDown")
    assert timeline.js("goodput.timeline.activeRow().title") == names[-1]
    timeline.press("PageUp", "PageUp", "PageUp")
    assert timeline.js("goodput.timeline.activeRow().title") == "run"


def test_brackets_f_r_m_and_escape(timeline: Look) -> None:
    starts, walls = timeline.column("steps", "start"), timeline.column("steps", "wall")
    timeline.js("goodput.timeline.select({kind: 'step', row: 10, process: 0})")
    timeline.press("]")
    assert timeline.state("selected")["row"] == 11
    timeline.press("[", "[")
    assert timeline.state("selected")["row"] == 9
    timeline.press("f")
    begin, end = timeline.view()
    assert begin < starts[9] and starts[9] + walls[9] < end
    assert end - begin == pytest.approx(1.5 * walls[9])
    timeline.press("r")
    assert timeline.state("range") == [starts[9], starts[9] + walls[9]]
    timeline.press("m")
    facts = {one["fact"]: one["ns"] for one in timeline.data("#measure dd[data-ns]")}
    assert int(facts["length"]) == walls[9]
    shares = timeline.data("#measure [data-category]")
    assert sum(int(one["ns"]) for one in shares) == walls[9]
    timeline.press("Escape")
    assert timeline.state("range") is None and timeline.state("selected") is None
    assert timeline.page.is_hidden("#measure")
    # The rows of a disruption, the ends of a table.
    timeline.js("goodput.timeline.select({kind: 'step', row: 0, process: 0})")
    timeline.press("[")
    assert timeline.state("selected")["row"] == 0


def test_m_measures_between_two_clicks(timeline: Look) -> None:
    timeline.press("m")
    assert "first point" in timeline.text("#measure")
    x, y = timeline.place(200, 120)
    timeline.page.mouse.click(x, y)
    timeline.until("document.getElementById('measure').textContent.includes('second point')")
    timeline.page.mouse.click(x + 300, y)
    timeline.until("goodput.timeline.measure.done")
    begin, end = (timeline.js("goodput.timeline.timeAt(given)", at) for at in (200, 500))
    facts = {one["fact"]: int(one["ns"]) for one in timeline.data("#measure dd[data-ns]")}
    assert facts["begin"] == pytest.approx(begin, abs=end / 500)
    assert facts["length"] == pytest.approx(end - begin, rel=0.02)
    assert sum(int(one["ns"]) for one in timeline.data("#measure [data-category]")) == facts["length"]
    assert timeline.state("selected") is None  # the clicks measured, and selected nothing


def test_p_pins_a_lane_to_the_top(timeline: Look) -> None:
    at = timeline.js("goodput.timeline.tree.rows.findIndex((row) => row.title === 'steps')")
    for _ in range(at):
        timeline.press("ArrowDown")
    timeline.press("p")
    timeline.until("goodput.timeline.lanes()[0].pinned")
    assert timeline.js("goodput.timeline.lanes()[0].name") == "steps"
    assert timeline.page.locator(".tree-row.pinned").inner_text().strip().startswith("steps")
    timeline.press("p")
    timeline.until("!document.querySelector('.tree-row.pinned')")


def test_the_list_of_keys_names_every_one_of_them(timeline: Look) -> None:
    timeline.press("?")
    timeline.page.wait_for_selector("#shortcuts[open]")
    listed = timeline.page.eval_on_selector_all("#shortcuts kbd", "(all) => all.map((one) => one.textContent)")
    for key in ("w", "s", "a", "d", "←", "→", "↑", "↓", "f", "0", "[", "]", "/", "m", "p", "?", "Esc", "r"):
        assert key in listed
    before = timeline.view()
    timeline.press("w")  # behind an open dialog nothing moves
    assert timeline.view() == before
    timeline.press("Escape")
    timeline.until("!document.getElementById('shortcuts').open")
    timeline.page.click("#shortcuts-open")
    timeline.page.wait_for_selector("#shortcuts[open]")
    timeline.page.locator("#shortcuts button").click()
    timeline.until("!document.getElementById('shortcuts').open")


def test_slash_searches_the_whole_run(timeline: Look) -> None:
    timeline.press("/")
    assert timeline.js("document.activeElement.id") == "search"
    timeline.page.keyboard.type("step 33")
    timeline.press("Enter")
    timeline.until("document.querySelector('#selection h3')?.textContent === 'step 33'")
    row = timeline.state("selected")["row"]
    assert timeline.column("steps", "number")[row] == 33
    begin, end = timeline.view()
    assert begin < timeline.column("steps", "start")[row] < end
    for words, least in (("eval", 4), ("preemption", 2), ("forward", 100), ("lost", 10), ("checkpoint", 6)):
        timeline.page.fill("#search", words)
        timeline.until("goodput.state.query === given", words)
        timeline.settle()
        assert timeline.page.locator("#search-results [role=option]").count() >= least, words
    timeline.press("ArrowDown", "ArrowDown", "ArrowUp", "Enter")
    assert timeline.page.get_attribute("#search-results [role=option]", "aria-selected") == "true"
    timeline.until("goodput.state.selected.kind === 'save'")
    timeline.press("Escape")
    timeline.until("document.getElementById('search-results').hidden")
    assert timeline.js("document.activeElement.tagName") == "CANVAS"


def test_a_span_is_found_by_its_id(timeline: Look) -> None:
    row, span = timeline.js("[...goodput.model.step_ids][5]")
    timeline.page.fill("#search", span)
    timeline.press("Enter")
    timeline.until("goodput.state.selected?.row === given", row)


def test_keys_are_for_the_timeline_only_where_it_is_meant(timeline: Look) -> None:
    before = timeline.view()
    timeline.page.focus("#top-k-count")
    timeline.press("w", "d", "0")
    timeline.page.locator("#top-k button").first.focus()
    timeline.press("w")
    assert timeline.view() == before
    timeline.js("document.activeElement.blur()")
    timeline.press("w")
    assert width(timeline.view()) < width(before)


def test_everything_can_be_reached_by_tab_and_shows_where_the_focus_is(look: Look, story_page: Path) -> None:
    look.open(story_page)
    wanted = look.js(
        """[...document.querySelectorAll("a[href], button, input, select, summary, canvas, [tabindex='0']")]
        .filter((one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility({visibilityProperty: true}))
        .map((one, at) => one.dataset.walk = String(at))"""
    )
    seen: set[str] = set()
    unseen: list[str] = []
    for _ in range(2 * len(wanted)):
        look.press("Tab")
        focused = look.js(
            """((one) => [one.dataset.walk ?? "", one.outerHTML.slice(0, 90), one.matches(":focus-visible"),
            getComputedStyle(one).outlineStyle, one.getBoundingClientRect().width])(document.activeElement)"""
        )
        walk, html, visible, outline, wide = focused
        if not walk or walk in seen:
            if seen.issuperset(wanted):
                break
            continue
        seen.add(walk)
        if not (visible and outline != "none" and wide > 0):
            unseen.append(html)
    assert not unseen
    missed = set(wanted) - seen
    assert not missed, look.js(
        "given.map((at) => document.querySelector(`[data-walk='${at}']`)?.outerHTML.slice(0, 120))", sorted(missed)
    )
