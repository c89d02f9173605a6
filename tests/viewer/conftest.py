"""Runs to look at."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import warm
from tools.commands import environment

from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._viewer.page import of_run
from otel_goodput.reports.run import RecordedRun

from .browser import Look, launched, looking
from .story import story_run

NS = 1_000_000_000
LIFE = Path(__file__).with_name("life.py")
EVIL = "<img src=x onerror=alert(1)> \"'&</script> \u202e eval"

Live = Callable[..., None]


def live(directory: Path, name: str, first: int, last: int, *, dies: bool = False, **more: Any) -> None:
    """One attempt of a job, see ``life.py``."""
    settings = json.dumps(
        {"directory": str(directory), "name": name, "first": first, "last": last, "dies": dies, **more}
    )
    done = warm.run(
        [sys.executable, str(LIFE), settings],
        env=environment(),
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == (-9 if dies else 0), done.stderr


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of two attempts, killed in step 24 and gone on with from step 20, and of two processes."""
    directory = tmp_path_factory.mktemp("lived")
    who = {"processes": 3, "evaluated": EVIL}  # the third has left nothing
    with ThreadPoolExecutor(2) as both:
        for first, last, dies in ((0, 24, True), (20, 59, False)):
            begun = [both.submit(live, directory, "lived", first, last, dies=dies, process=k, **who) for k in (0, 1)]
            for each in begun:
                each.result()
    return RunDirectory(directory / "lived")


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """A browser; it takes a second to start and to end."""
    with launched() as browser:
        yield browser


@pytest.fixture
def look(chromium: Any) -> Iterator[Look]:
    """A window of 1,280 by 900 pixels."""
    with looking(chromium) as opened:
        yield opened


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that has everything that the page can show, see ``story.py``."""
    return story_run(tmp_path_factory.mktemp("story"))


def page_of(run: RunDirectory, path: Path, **how: Any) -> Path:
    path.write_text(of_run(RecordedRun(run), **how), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def story_page(story: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(story, tmp_path_factory.mktemp("page") / "story.html")


@pytest.fixture(scope="session")
def lived_page(lived: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(lived, tmp_path_factory.mktemp("page") / "lived.html")


@pytest.fixture
def timeline(look: Look, story_page: Path) -> Look:
    """The page, with its timeline in sight."""
    look.open(story_page)
    look.at_timeline()
    return look
