"""``otel-goodput report --html``: a run as one file."""

from __future__ import annotations

import base64
import gzip
import json
import re
import stat
from pathlib import Path

import pytest
from timelines import timeline_totals

import otel_goodput
from benchmarks.container import Container
from otel_goodput.errors import GoodputError
from otel_goodput.reports.report import Report

from .commands import failed, finished, goodput, killed, succeeded


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    killed("alpha", folder, 0, 10)
    finished("alpha", folder, 6, 20)
    return folder / "alpha"


def document(page: str) -> Container:
    [packed] = re.findall(r'id="document">([^<]*)<', page)
    return Container(gzip.decompress(base64.b64decode(packed)))


def test_the_page_is_written_for_its_owner_and_named(run: Path, tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    printed = succeeded(goodput("report", run, "--html", place))
    assert printed.startswith(f"{place}: ") and printed.endswith(" MB\n")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    report = json.loads(succeeded(goodput("report", run, "--json")))
    del report["configurations"]  # the page has what each attempt ran with
    assert document(place.read_text(encoding="utf-8")).head["report"] == report


def test_a_page_may_go_to_standard_output(run: Path) -> None:
    page = succeeded(goodput("report", run, "--html", "-", "--spans", "0"))
    assert page.startswith("<!doctype html>")
    assert document(page).head["report"]["run_id"] == "alpha"


def test_a_moment_of_the_past(run: Path, tmp_path: Path) -> None:
    succeeded(goodput("report", run, "--html", tmp_path / "early.html", "--at", "0.01s"))
    report = document((tmp_path / "early.html").read_text(encoding="utf-8")).head["report"]
    assert report["attempts"] == 1 and report["elapsed_s"] == pytest.approx(0.01)


def test_conflicting_options_are_refused(run: Path, tmp_path: Path) -> None:
    assert "is a directory: name a file" in failed(goodput("report", run, "--html", tmp_path))
    place = tmp_path / "no.html"
    for more in (["--json"], ["--window", "0s", "1s"], ["--process", "1"]):
        assert f"it cannot be combined with {more[0]}" in failed(goodput("report", run, "--html", place, *more))
    assert not place.exists()
    assert "holds no run" in failed(goodput("report", tmp_path / "nothing", "--html", place))


def test_a_live_job_writes_its_page(tmp_path: Path) -> None:
    recorder = otel_goodput.Recorder("live", run_id="live", directory=tmp_path, exporters="none")
    try:
        with recorder.job():
            for number in range(5):
                with recorder.step(number):
                    pass
            report = recorder.report()
            place = report.html(tmp_path / "live.html")
        head = document(place.read_text(encoding="utf-8")).head
        figures = {name: figure for name, figure in report.to_json().items() if name != "configurations"}
        assert head["report"] == figures  # the attempts have what they ran with
        assert head["steps"]["rows"] == 5
        assert head["processes"][0]["state"] == head["attempts"][0]["state"] == "running"
        with pytest.raises(GoodputError, match="is a directory"):
            report.html(tmp_path)
    finally:
        recorder.shutdown()


def test_a_report_without_a_journal_has_no_page(tmp_path: Path) -> None:
    report = Report(timeline_totals([{"kind": "job", "start": 0, "end": 1, "attempt": 1}]), {})
    with pytest.raises(GoodputError, match="no page"):
        report.html(tmp_path / "none.html")
