"""What a served page sums up is shown span by span where somebody looks closely, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.long_run import write

from .browser import looking
from .served import serving

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.servers


def test_zooming_into_what_is_summed_up_shows_single_spans(chromium: Any, tmp_path: Path) -> None:
    place = tmp_path / "runs"
    write(place, 8_000)
    with serving(place, "--spans", "1000") as server, looking(chromium, f"http://127.0.0.1:{server.port}/") as look:
        look.open(server.address)
        look.open(f"http://127.0.0.1:{server.port}/runs/long")
        assert not look.js("goodput.model.detail.complete")
        assert look.js("goodput.model.server") == {"port": server.port, "idle_s": None}
        assert str(server.port) in look.js("document.getElementById('settings').textContent")
        before = look.js("goodput.model.steps.rows")
        begin, end = look.js(
            "goodput.timeline.source.summed.reduce((one, other) => other[1] - other[0] > one[1] - one[0] ? other : one)"
        )
        middle = (begin + end) // 2
        low, high = middle - 10**10, middle + 10**10
        look.js("goodput.timeline.setView(given[0], given[1])", [low, high])
        look.until("goodput.model.steps.rows > given", before)
        assert look.view() == [low, high]
        assert not look.js("goodput.timeline.source.summed.some(([a, b]) => a < given[1] && b > given[0])", [low, high])
        starts = look.column("steps", "start")
        assert starts == sorted(starts)
        assert len(starts) == len(set(starts))
        # Whose each instant is, is known there too: the lane of the partition tells it one by one, and sums are exact.
        lane = "goodput.timeline.source.partitionLane()"
        assert not look.js(f"{lane}.summed.some(([a, b]) => a < given[1] && b > given[0])", [low, high])
        assert look.js(f"{lane}.summed.length") > 0
        look.js("goodput.state.set({range: given})", [low, high])
        look.settle()
        pieces = look.data("#selection [data-category]")
        assert sum(int(one["ns"]) for one in pieces) == high - low
        assert look.data("#selection .fact-card")[-1]["exact"] == "true" and "≈" not in look.text("#selection")
        owner = look.js("goodput.timeline.source.owners.begin.findIndex((begin) => begin > given)", low)
        look.js("goodput.timeline.select({kind: 'owner', row: given, process: 0})", owner)
        assert look.js("goodput.timeline.spanX('owner', given)", owner)
        look.js("goodput.state.set({range: null})")
        row = next(at for at, start in enumerate(starts) if low < start < high)
        look.js("goodput.timeline.select({kind: 'step', row: given, process: 0})", row)
        assert look.text("#selection h3") == f"step {look.column('steps', 'number')[row]:.0f}"
        assert look.js("goodput.timeline.spanX('step', given)", row)
        parents = look.js("Array.from(goodput.model.phases.parent)")
        assert all(parent < len(parents) for parent in parents)

        # Rows move when an earlier stretch is fetched: the same step stays selected, and a shared address names it.
        title, shown, fetched = look.text("#selection h3"), look.text("#selection"), look.js("goodput.model.steps.rows")
        look.js("goodput.timeline.setView(given + 2e9, given + 4e10)", begin)
        look.until("goodput.model.steps.rows > given", fetched)
        assert look.state("selected")["row"] > row
        assert look.text("#selection h3") == title
        look.js("goodput.timeline.setView(given[0], given[1])", [low, high])
        with looking(chromium, f"http://127.0.0.1:{server.port}/") as other_page:
            other_page.open(server.address)
            other_page.open(f"http://127.0.0.1:{server.port}/runs/long", look.js("goodput.state.toHash()"))
            other_page.until("goodput.state.selected !== null")  # once its window has come
            assert other_page.state("selected")["row"] == row
            assert other_page.text("#selection") == shown

        # What the server refuses is shown, and not requested again.
        look.page.route("**/window?*", lambda route: route.fulfill(status=500, body="{}"))
        requests_before = len([one for one in look.requests if "/window?" in one])
        other = (begin + middle) // 2
        look.js("goodput.timeline.setView(given - 1e9, given + 1e9)", other)
        look.until("document.getElementById('message').textContent.includes('stays summed up')")
        look.settle()
        assert len([one for one in look.requests if "/window?" in one]) == requests_before + 1
        look.messages.clear()  # the browser itself says that it got a 500
