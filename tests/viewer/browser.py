"""The page in a real browser: Chromium without a window, driven by Playwright, and what must hold wherever it looks."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from waits import PATIENCE_S, until

from otel_goodput._viewer import page

PATIENCE_MS = 1000 * PATIENCE_S
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# It asks nobody for anything on its own account either, so that what is asked for is the page's doing.
FLAGS = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


def chromium_path() -> str | None:
    """Where the browser is: next to Python, where `make parts` puts it, or on PATH."""
    places = (str(Path(sys.executable).parent), os.environ.get("PATH", ""))
    return next(
        (executable for place in places for name in NAMES if (executable := shutil.which(name, path=place))), None
    )


@contextmanager
def launched() -> Iterator[Any]:
    """A browser; the test is skipped where there is none.

    It belongs to a package of tests, not to a worker: while Playwright is at work an event loop runs in this thread,
    and what starts one of its own here would fail.
    """
    path = chromium_path()
    if path is None:
        pytest.skip("needs Chromium: see `make parts`")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()


class Look:
    """A page that somebody looks at. Whatever it says, asks for or opens is remembered."""

    def __init__(self, page: Any, allowed: str = "") -> None:
        self.page = page
        self.allowed = allowed  # where a served page may ask
        self.messages: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.messages.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda other: self.messages.append(f"popup: {other.url}"))
        page.on("request", lambda request: self.requests.append(request.url))
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(
            "document.addEventListener('securitypolicyviolation', (event) => console.error('policy', event.blockedURI))"
        )

    def open(self, address: str | Path, hash_: str = "", *, ready: bool = True) -> Look:
        """Show a file or an address; wait until all parts of the page stand."""
        if isinstance(address, Path):
            address = address.as_uri()
        self.page.goto(f"{address}#{hash_}" if hash_ else address)
        self.page.wait_for_selector("html[data-ready=yes]" if ready else "#message:not([hidden])", state="attached")
        return self

    def check(self) -> None:
        """Nothing was complained of, and nothing was asked for but the page itself."""
        assert not self.messages, self.messages
        elsewhere = [
            one for one in self.requests if not one.startswith(("file://", "data:", self.allowed or "file://"))
        ]
        assert not elsewhere
        if not self.allowed:
            assert len({one.partition("#")[0] for one in self.requests if one.startswith("file:")}) <= 1, self.requests

    def forget(self) -> None:
        """Be as new: an empty page that stores nothing."""
        for other in self.page.context.pages:
            if other != self.page:
                other.close()
        self.page.unroute_all()
        if self.page.url != "about:blank":  # which may not store anything, and raises
            self.page.evaluate("localStorage.clear()")
            self.page.goto("about:blank")
        self.page.set_viewport_size(_USUAL["viewport"])
        self.page.mouse.move(0, 0)
        self.messages.clear()
        self.requests.clear()

    # --- what is there ----------------------------------------------------------------------------------------------

    def js(self, text: str, given: Any = None) -> Any:
        """The value of an expression; `given` may be used in it."""
        return self.page.evaluate(f"(given) => ({text})", given)

    def until(self, text: str, given: Any = None) -> None:
        """Wait until an expression is true. Older Playwrights wait by ``eval``, which the page's policy forbids."""
        until(lambda: self.js(text, given), lacking=lambda: f"{text} of {given}")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def data(self, selector: str) -> list[dict[str, str]]:
        """The data attributes of all elements that a selector finds."""
        return self.page.eval_on_selector_all(selector, "(all) => all.map((one) => ({...one.dataset}))")

    def state(self, name: str) -> Any:
        return self.js("goodput.state[given]", name)

    def view(self) -> list[float]:
        """What the timeline shows, ns."""
        return self.js("goodput.timeline.view()")

    # --- what is done -----------------------------------------------------------------------------------------------

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def settle(self) -> None:
        """All that waits for a frame has been drawn, which takes many frames on a busy machine."""
        self.page.evaluate(
            """() => new Promise((done) => {
                const look = () => window.goodput?.drawn() === false ? requestAnimationFrame(look) : setTimeout(done);
                requestAnimationFrame(() => requestAnimationFrame(look));
            })"""
        )

    def at_timeline(self) -> None:
        """Put the focus on the timeline."""
        self.page.locator("#timeline canvas").scroll_into_view_if_needed()
        self.page.locator("#timeline canvas").focus()

    def place(self, x: float, y: float) -> tuple[float, float]:
        """A point of the timeline's canvas as one of the window."""
        box = self.page.locator("#timeline canvas").bounding_box()
        return box["x"] + x, box["y"] + y

    def span(self, kind: str, row: int) -> tuple[float, float]:
        """The middle of a span of the timeline, in the window."""
        box = self.js("goodput.timeline.spanX(given[0], given[1])", [kind, row])
        assert box, f"{kind} {row} is not in sight"
        return self.place((box["x0"] + box["x1"]) / 2, (box["y0"] + box["y1"]) / 2)

    def column(self, table: str, name: str) -> list[float]:
        return self.js("Array.from(goodput.model[given[0]][given[1]])", [table, name])


@contextmanager
def looking(browser: Any, allowed: str = "", **context: Any) -> Iterator[Look]:
    """A window that remembers nothing; at its end nothing may have been complained of.

    The usual window is used again: another one takes Chromium four times as long.
    """
    idle = _idle.setdefault(browser, [])
    if context or not idle:
        look = Look(browser.new_context(**_USUAL | context).new_page())
    else:
        look = idle.pop()
    look.allowed = allowed
    try:
        yield look
        look.check()
        if not context:
            look.forget()
            idle.append(look)
    finally:
        if look not in idle:
            look.page.context.close()


_USUAL = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
_idle: WeakKeyDictionary[Any, list[Look]] = WeakKeyDictionary()


def rows(look: Look) -> list[tuple[dict[str, str], str]]:
    """What is known of the selection: the data of each row, and its text."""
    shown = look.page.locator("#selection dd")
    return list(zip(look.data("#selection dd"), shown.all_inner_texts(), strict=True))


def head_of(content: bytes) -> dict[str, Any]:
    """The JSON of a document."""
    size = int.from_bytes(content[4:8], "little")
    return json.loads(content[8 : 8 + size])


def with_head(content: bytes, head: dict[str, Any]) -> bytes:
    """A document with another JSON; its columns stay."""
    size = int.from_bytes(content[4:8], "little")
    packed = json.dumps(head).encode()
    return content[:4] + len(packed).to_bytes(4, "little") + packed + content[8 + size :]


ORIGIN = "http://modules.test/"  # answered by the test: browsers import no modules from a disk


def evaluated(browser: Any, module: Path, text: str, given: Any) -> Any:
    """What an expression says in an empty page that has the page's own modules.

    `module` is a module of a test's own, which the expression finds as `shows`; `given` may be used in it.
    """

    def answer(route: Any) -> None:
        name = route.request.url.removeprefix(ORIGIN)
        if not name.endswith(".js"):
            route.fulfill(content_type="text/html", body="<!doctype html><link rel=icon href='data:,'>")
            return
        body = module.read_text(encoding="utf-8") if name == module.name else page.modules()[name]
        route.fulfill(content_type="text/javascript", body=body)

    with looking(browser, ORIGIN) as look:
        look.page.route("**/*", answer)
        look.page.goto(ORIGIN)
        return look.page.evaluate(
            f"async (given) => {{ const shows = await import('/{module.name}'); return {text}; }}", given
        )
