"""``make bench-viewer``, its second part: what the page of a run costs in a browser; written to RESULTS-VIEWER.md.

Chromium without a window and a GPU draws the page, which is slower than a desk's browser. `frame` is the time of
the page's own code for a picture of the timeline, of hundreds of pans, zooms and scrolls one after the other.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import machine
from benchmarks.long_run import write
from benchmarks.viewer import BROWSER, RESULTS, SERVER
from otel_goodput._viewer.page import of_run
from otel_goodput.reports.run import RecordedRun

PATIENCE_MS: Final = 180_000
OPENED: Final = 5  # times that each page is opened
LOOKS: Final = 60  # pictures of each kind of movement
SIZE: Final = {"width": 1600, "height": 1000}
# Opened: from the start of the navigation until all parts stand and the first picture of them is on the screen.
OPEN_JS: Final = """() => new Promise((done) => {
    const ready = () => document.documentElement.dataset.ready === "yes";
    const end = () => requestAnimationFrame(() => setTimeout(() => done(performance.now())));
    if (ready()) return end();
    new MutationObserver((_, self) => ready() && (self.disconnect(), end()))
        .observe(document.documentElement, {attributes: true});
})"""
# All lanes open; pans and zooms of the whole run and of parts of it, scrolls through the lanes.
FRAMES_JS: Final = """async (looks) => {
    const {timeline} = window.goodput;
    const times = {pan: [], zoom: [], scroll: [], spans: 0, lanes: timeline.tree.rows.length};
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    for (const lane of timeline.tree.ownLanes) for (const track of lane.tracks) times.spans += track.length;
    const whole = timeline.whole;
    const step = async (kind, change) => {
        await frame();
        change();
        times[kind].push(timeline.draw());
    };
    for (let at = 0; at < looks; at++) await step("zoom", () => timeline.zoom(at % 20 < 10 ? 1 / 1.5 : 1.5));
    timeline.setView(...whole);
    timeline.zoom(1 / 1.05);
    for (let at = 0; at < looks; at++) await step("pan", () => timeline.pan(at % 2 ? 0.02 : -0.02));
    const room = timeline.tree.height;
    for (let at = 0; at < looks; at++) await step("scroll", () => timeline.scrollTo((room * at) / looks));
    return times;
}"""


class Case(NamedTuple):
    """A run, and the bounds: ms until the page stands, and ms of a frame."""

    what: str
    steps: int
    processes: int
    opens: float
    frame: float


CASES: Final = (
    Case("10⁶ steps, 512 ranks", 1_000_000, 512, 2000.0, 25.0),
    Case("200,000 spans one by one, 1 rank", 92_000, 1, 2000.0, 25.0),
    Case("200,000 spans one by one, 512 ranks", 92_000, 512, 2000.0, 25.0),
)
FAST: Final = (Case("2,000 steps, 4 ranks", 2_000, 4, 2000.0, 25.0),)


class Measured(NamedTuple):
    """Milliseconds of opening and of frames, how many spans and rows there were, and bytes of the tab."""

    opened: list[float]
    frames: list[float]
    spans: int
    lanes: int
    heap: float
    resident: float


def _resident(browser: Any) -> float:
    """Bytes that the process of the page holds of its own, or 0 where the system does not tell."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    held = [0.0]
    for one in processes:
        status = Path(f"/proc/{one['id']}/status")
        if one["type"] == "renderer" and status.exists():
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            held.append(1024.0 * int(lines["RssAnon"].split()[0]))
    return max(held)


def _measured(browser: Any, path: Path) -> Measured:
    opened: list[float] = []
    for number in range(OPENED):
        context = browser.new_context(viewport=SIZE)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(path.as_uri(), wait_until="commit")
        opened.append(page.evaluate(OPEN_JS))
        if number + 1 < OPENED:
            context.close()
    times = page.evaluate(FRAMES_JS, LOOKS)
    session = context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    heap = page.evaluate("performance.memory.usedJSHeapSize")
    resident = _resident(browser)
    context.close()
    frames = [ms for kind in ("pan", "zoom", "scroll") for ms in times[kind]]
    return Measured(opened, frames, times["spans"], times["lanes"], heap, resident)


def _chromium() -> str:
    """Where Chromium is: next to Python, where `make parts` puts it, or on PATH. LookupError without one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    for place in (str(Path(sys.executable).parent), None):
        for name in names:
            if executable := shutil.which(name, path=place):
                return executable
    raise LookupError("no Chromium: see `make parts`")


def _rows(cases: tuple[Case, ...]) -> Iterator[str]:
    from playwright.sync_api import sync_playwright

    columns = ("run", "spans, rows of the tree", "opens, median", "longest", "bound", "frame, median", "p95", "bound")
    yield f"| {' | '.join((*columns, 'heap', 'tab'))} |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    flags = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    flags.append("--enable-precise-memory-info")
    with sync_playwright() as driver:
        for case in cases:
            with tempfile.TemporaryDirectory(prefix="otel-goodput-bench-") as folder:
                path = Path(folder) / "page.html"
                path.write_text(of_run(RecordedRun(write(Path(folder), case.steps, case.processes))), encoding="utf-8")
                browser = driver.chromium.launch(executable_path=_chromium(), args=flags)
                try:
                    measured = _measured(browser, path)
                finally:
                    browser.close()
            p95 = statistics.quantiles(measured.frames, n=20)[-1]
            yield (
                f"| {case.what} | {measured.spans:,}, {measured.lanes} | {statistics.median(measured.opened):.0f} ms "
                f"| {max(measured.opened):.0f} ms | {case.opens:.0f} ms | {statistics.median(measured.frames):.1f} ms "
                f"| {p95:.1f} ms | {case.frame:.0f} ms "
                f"| {measured.heap / 2**20:.0f} MiB | {measured.resident / 2**20:.0f} MiB |"
            )


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.browser", description="What the page costs in a browser.")
    parser.add_argument("--fast", action="store_true", help="a small run only; RESULTS-VIEWER.md stays")
    options = parser.parse_args()
    lines: list[str] = []
    for line in _rows(FAST if options.fast else CASES):
        print(line, flush=True)
        lines.append(line)
    if options.fast:
        return 0
    body = "\n".join(lines)
    described = "\n".join(f"- {what}: {value}" for what, value in machine.describe()[:4])
    before, served = "# What the page of a run costs\n\n", ""
    if RESULTS.exists():
        whole = RESULTS.read_text(encoding="utf-8")
        before, served = whole.partition(BROWSER)[0], "".join(whole.partition(SERVER)[1:])
    about = (
        f"Chromium without a window or a GPU, {SIZE['width']} × {SIZE['height']} pixels. "
        "`opens`: from the navigation until all parts stand and are "
        f"drawn, {OPENED} times. `frame`: a picture of the timeline, {LOOKS} pans, {LOOKS} zooms and "
        f"{LOOKS} scrolls. `heap`: of its scripts, after "
        "a collection; `tab`: what the process of the page holds of its own."
    )
    mine = f"{BROWSER}\n\n## In a browser\n\n{about}\n\n{described}\n\n{body}\n"
    RESULTS.write_text(f"{before}{mine}{served and chr(10)}{served}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
