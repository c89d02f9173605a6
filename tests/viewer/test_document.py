"""The document of a run: its figures are those of the report, its rows those of the journal."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tools.commands import goodput, succeeded

from benchmarks.container import Container
from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._recording.ids import attempt_trace_id
from otel_goodput._timeline.overviews import overview_of
from otel_goodput._timeline.reader import all_events
from otel_goodput._viewer.document import document
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView, process_steps
from otel_goodput.semconv import PHASES

from .conftest import EVIL, NS, live


class Page:
    """A document, decoded."""

    def __init__(self, run: RunDirectory, **how: Any) -> None:
        self.session = RunView.open(RecordedRun(run), **how)
        self.container = Container(document(self.session))
        self.head = self.container.head

    @property
    def own(self) -> dict[str, Any]:
        """The report of the leader by itself, whose steps and phases the page has."""
        assert self.head["leader"] is None, "the steps and phases are those of the job"
        report: dict[str, Any] = (self.head["job"] or {"leader": self.head})["leader"]["report"]
        return report

    def table(self, name: str) -> list[dict[str, int]]:
        columns = self.container.table(self.head[name])
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def bins(self) -> dict[int, list[int]]:
        return {int(name): values for name, values in self.container.table(self.head["bins"]["values"]).items()}

    def seconds(self, held: dict[int, int]) -> dict[str, Any]:
        """The form of the report's `seconds`, without zeros."""
        by_name: dict[str, Any] = {}
        for number, ns in held.items():
            category = self.head["categories"][number]
            if number >= rules.FIXED:
                by_name.setdefault("custom", {})[category["custom"]] = ns / NS
            elif ns:
                by_name[category["name"]] = ns / NS
        return by_name


@pytest.fixture(scope="module")
def page(lived: RunDirectory) -> Page:
    return Page(lived)


def without_zeros(seconds: dict[str, Any]) -> dict[str, Any]:
    return {name: held for name, held in seconds.items() if held}


def test_the_report_is_the_report(page: Page, lived: RunDirectory) -> None:
    report = json.loads(succeeded(goodput("report", lived.path, "--json")))
    configuration = report.pop("configurations")[-1]  # the page has that of each attempt
    assert page.head["report"] == report
    assert page.head["attempts"][-1]["facts"]["hyperparameters"] == configuration["hyperparameters"]
    assert page.head["verdict"] in succeeded(goodput("report", lived.path))


def test_bins_and_owners_sum_to_the_report(page: Page) -> None:
    seconds = without_zeros(page.own["seconds"])
    assert page.seconds({number: sum(values) for number, values in page.bins().items()}) == seconds
    owned: Counter[int] = Counter()
    for row in page.table("owners"):
        owned[row["category"]] += row["length"]
    assert page.seconds(owned) == seconds
    assert page.head["bins"]["count"] == max(len(values) for values in page.bins().values()) <= 1024


def test_attempts_and_the_time_between_them_tile_the_run(page: Page) -> None:
    attempts, report = page.head["attempts"], page.own
    assert [one["number"] for one in attempts] == [1, 2]
    assert [one["state"] for one in attempts] == ["died", "ended"]
    between = [later["begin"] - earlier["end"] for earlier, later in pairwise(attempts)]
    assert between == [one["recovery_ns"] for one in page.head["disruptions"]]
    summed: Counter[str] = Counter({"infrastructure_recovery": sum(between)})
    for one in attempts:
        assert round(one["elapsed_s"] * NS) == one["end"] - one["begin"]
        for name, held in one["seconds"].items():
            for part, seconds in held.items() if isinstance(held, dict) else [("", held)]:
                summed[f"{name}/{part}" if part else name] += round(seconds * NS)
    for name, held in report["seconds"].items():
        for part, seconds in held.items() if isinstance(held, dict) else [("", held)]:
            assert summed[f"{name}/{part}" if part else name] == round(seconds * NS)


def test_steps_have_their_fates_and_net_times(page: Page) -> None:
    steps, report = page.table("steps"), page.own
    fates = Counter(step["fate"] for step in steps)
    assert (fates[0], fates[1]) == (report["steps"]["kept"], report["steps"]["lost"])
    lost = sorted(step["number"] for step in steps if step["fate"] == 1)
    assert lost == [20, 21, 22, 23, 24]
    kept = sum(step["net"] for step in steps if step["fate"] == 0)
    owned = Counter[int]()
    for row in page.table("owners"):
        owned[row["category"]] += row["length"]
    assert kept == owned[rules.PRODUCTIVE] + owned[rules.PROGRAM_STARTUP]
    [died] = [step for step in steps if step["wall"] == -1]
    assert died["number"] == 24 and died["attempt"] == 1


def test_profiles_in_the_runs_folder_are_named(lived: RunDirectory, tmp_path: Path) -> None:
    assert Page(lived).head["traces"]["xprof"] is None
    folder = tmp_path / "lived"
    shutil.copytree(lived.path, folder)
    (folder / "plugins" / "profile" / "2026_11_25_09_30_00").mkdir(parents=True)
    assert Page(RunDirectory(folder)).head["traces"]["xprof"] == str(folder)


def test_the_steps_of_other_ranks_are_those_of_their_journals(page: Page, lived: RunDirectory) -> None:
    origin, begun, listed = int(page.head["origin_ns"]), dict[int, Any](), []
    for event in all_events(lived, 1):
        if event.kind == ev.START and event.phase == rules.STEP:
            begun[event.key] = event
        elif event.kind == ev.END and event.key in begun:
            start = begun.pop(event.key)
            listed.append((1, start.step, start.step, start.time - origin, 1, event.time - start.time))
    rows = [tuple(row.values()) for row in page.table("process_steps") if row["process"] == 1]
    died = next(row for row in rows if row[1] == 24)  # it was killed in this step
    assert [row[:6] for row in rows if row is not died] == listed
    assert all(row[5] == row[6] for row in rows)


def test_steps_of_many_ranks_are_joined_to_so_many_rows(lived: RunDirectory) -> None:
    overview = overview_of(lived, 1)
    assert overview is not None
    bins = list(overview.overview.step_bins)
    one_by_one = process_steps(bins, 10_000)
    assert len(one_by_one) == len(bins) > 60
    for rows in (1, 2, 7, 64, len(bins)):
        merged = process_steps(bins, rows)
        assert len(merged) <= rows
        assert sum(row.count for row in merged) == sum(row.count for row in one_by_one)
        assert max(row.net_max for row in merged) == max(row.net_max for row in one_by_one)
        assert [row.begin for row in merged] == [one.begin for one in one_by_one[:: -(-len(bins) // rows)]]
        middle = sum(row.count * row.net_median for row in merged) / len(one_by_one)
        assert middle == pytest.approx(sum(row.net_median for row in one_by_one) / len(one_by_one), rel=1e-6)


def test_a_long_run_has_the_owners_of_what_is_listed_in_detail(tmp_path: Path) -> None:
    live(tmp_path, "long", 0, 1200)
    page = Page(RunDirectory(tmp_path / "long"), spans=100)
    assert page.head["owners"] is None and page.head["detail"]["windows"]
    owners, origin = page.table("window_owners"), int(page.head["origin_ns"])
    for begin, end in page.head["detail"]["windows"]:
        mine = [row for row in owners if begin <= row["begin"] < end]
        assert [row["begin"] for row in mine] == [begin, *(row["begin"] + row["length"] for row in mine)][:-1]
        held = Counter[int]()
        for row in mine:
            held[row["category"]] += row["length"]
        assert held == page.session.detail.partition(origin + begin, origin + end)
        assert held.total() == end - begin


def test_rows_are_those_of_the_journal(page: Page, lived: RunDirectory) -> None:
    origin = int(page.head["origin_ns"])
    begun: dict[tuple[int, int], Any] = {}
    expected = []
    attempt = 0
    for event in all_events(lived):
        if event.kind == ev.ATTEMPT:
            attempt = event.step + 1
        elif event.kind == ev.START:
            begun[attempt, event.key] = event
        elif event.kind == ev.END and (start := begun.pop((attempt, event.key), None)):
            expected.append((attempt, start, event.time - start.time))
    expected += [(of, one, -1) for (of, _), one in begun.items()]
    names = page.head["names"]
    listed = [
        (row["attempt"], row["phase"], names[row["name"]], row["start"], row["wall"]) for row in page.table("phases")
    ]
    listed += [(row["attempt"], rules.STEP, "", row["start"], row["wall"]) for row in page.table("steps")]
    assert sorted(listed) == sorted((of, one.phase, one.name, one.time - origin, wall) for of, one, wall in expected)
    counted, lengths = Counter[tuple[int, str, bool]](), Counter[tuple[int, str, bool]]()
    for _, one, wall in expected:
        key = one.phase, one.name, bool(one.flags & ev.NONBLOCKING)
        counted[key] += 1
        lengths[key] += max(0, wall)
    groups = {(one["phase"], names[one["name"]], one["background"]): one for one in page.head["groups"]}
    assert {key: one["count"] for key, one in groups.items()} == counted
    assert {key: one["sum_ns"] for key, one in groups.items()} == lengths


def test_the_histogram_counts_what_was_executed(page: Page) -> None:
    rows, steps = page.table("histogram"), page.own["steps"]
    assert sum(row["count"] for row in rows if row["measure"] == 0) == steps["kept"] + steps["lost"]
    assert sum(row["count"] for row in page.table("step_bins")) == steps["kept"] + steps["lost"]
    assert sum(row["lost"] for row in page.table("step_bins")) == steps["lost"]
    for row in rows:
        assert 2 ** (row["bucket"] / 16) < 300e6


def test_saves_and_what_is_at_risk(page: Page) -> None:
    saves = page.table("saves")
    assert [(save["attempt"], save["step"]) for save in saves] == [(1, 9), (1, 19), (2, 29), (2, 39), (2, 49), (2, 59)]
    assert all(save["begin"] <= save["blocking_end"] == save["durable_at"] for save in saves)
    risk = page.table("at_risk")
    assert [row["time"] for row in risk] == sorted(row["time"] for row in risk)
    assert min(row["ns"] for row in risk) >= 0
    assert risk[-1]["ns"] == round(page.own["at_risk_s"] * NS)


def test_every_process_is_there_or_missed(page: Page) -> None:
    leader, other, missing = page.head["processes"]
    assert leader["leader"] and not other["leader"]
    assert (leader["state"], other["state"]) == ("ended", "ended")
    assert (other["last_step"], other["attempts"], other["problem"]) == (59, [1, 2], "")
    assert other["bins"]["count"] and missing["bins"] is None
    assert "no journal" in missing["problem"]
    shares = other["bins"]
    assert shares["shares"]["length"] == shares["count"] * len(shares["categories"])


def test_names_with_markup_are_plain_text(page: Page) -> None:
    assert EVIL in page.head["names"]
    assert {"name": "custom", "custom": EVIL} in page.head["categories"]
    assert EVIL in page.head["report"]["seconds"]["custom"]


def test_trace_ids_are_those_of_the_trace(page: Page) -> None:
    expected = [f"{attempt_trace_id('lived', number):032x}" for number in (0, 1)]
    assert [one["trace_id"] for one in page.head["attempts"]] == expected


def test_no_secret_gets_in(tmp_path: Path) -> None:
    secret = "hunter2hunter2"
    for where in ("evaluated",):
        live(tmp_path, "secret", 0, 20, **{where: f"eval https://me:{secret}@host/x?token={secret}"})
    page = Page(RunDirectory(tmp_path / "secret"))
    content = document(page.session)
    assert secret.encode() not in content
    assert b"eval https://" in content


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_of_no_step_has_a_page(tmp_path: Path, steps: int) -> None:
    live(tmp_path, "short", 0, steps - 1)
    page = Page(RunDirectory(tmp_path / "short"))
    assert page.head["steps"]["rows"] == steps
    assert page.head["report"]["run_id"] == "short"


def test_a_folder_without_anything_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    page = Page(RunDirectory(tmp_path))
    assert page.head["report"]["elapsed_s"] == 0
    assert "no journal" in page.head["report"]["warnings"][0]["text"]
    assert page.head["processes"][0]["problem"]
    assert page.head["phases"]["rows"] == page.head["steps"]["rows"] == 0


def test_damaged_files_have_a_page_that_says_so(lived: RunDirectory, tmp_path: Path) -> None:
    copy = tmp_path / "lived"
    shutil.copytree(lived.path, copy)
    for path in (copy / "journal").glob("p0000.*"):
        path.write_bytes(b"\xff" * 100)
    for path in (copy / "journal").glob("a0000-p0000-*"):
        path.write_bytes(b"OGOODPUT" + b"\xff" * 5000)
    page = Page(RunDirectory(copy))
    assert page.head["report"]["damage"]
    assert page.head["processes"][0]["problem"]
    assert [one["number"] for one in page.head["attempts"]] == [2]


def test_what_a_snapshot_has_of_a_journal_that_is_gone_is_in_the_sums(lived: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / lived.path.name)
    shutil.copytree(lived.path, run.path)
    for segment in run.segments(0, 0):
        segment.path.unlink()
    page = Page(run)
    seconds = without_zeros(page.own["seconds"])
    assert page.own["attempts"] == 2
    assert page.seconds({number: sum(values) for number, values in page.bins().items()}) == seconds
    assert 2 in {one["attempt"] for one in page.table("steps")} and not page.head["detail"]["complete"]
    assert page.head["attempts"][0]["seconds"]["productive"] > 0


def test_reading_can_be_followed_and_stopped(lived: RunDirectory) -> None:
    calls: list[tuple[int, int, str]] = []
    RunView.open(RecordedRun(lived), progress=lambda *update: calls.append(update))
    assert calls and all(0 <= done <= total and what for done, total, what in calls)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RunView.open(RecordedRun(lived), progress=stop)


def test_the_numbers_of_names_and_phases_are_those_reported(page: Page) -> None:
    assert page.head["phase_names"] == list(PHASES)
    assert [one["name"] for one in page.head["categories"][: rules.FIXED]] == list(rules.NAMES)
    assert page.head["names"][0] == ""
