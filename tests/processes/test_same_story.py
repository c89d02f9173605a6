"""What a job lost its time to, and to which rank, is the same in the report, on the page, in metrics and in alerts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from collector.lives import flat

from collector import stories as alerts
from otel_goodput import semconv
from otel_goodput._accounting.rules import NS
from otel_goodput._metrics import workload_series as google
from otel_goodput._metrics.rank_waits import LEAST, WORTH
from otel_goodput.exporters.google import workload
from otel_goodput.semconv import CATEGORIES, METRICS, Category, JobState, Phase

from .stories import COUNT, HANGS, STORIES, Exported, Hung, Known, Point, Story, all_known

RATIO, WAIT, TIME = semconv.RATIO.name, semconv.RANK_WAIT.name, semconv.TIME.name
NAMES = {metric.name: metric for metric in METRICS}
# Fields of the report that everybody has who has one.
FIELDS = ("goodput", "elapsed_s", "seconds", "steps", "attempts", "disruptions", "disruption_reasons")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Known], Hung]:
    return all_known(tmp_path_factory.mktemp("stories"))


@pytest.fixture(params=STORIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def story(name: str) -> Story:
    return STORIES[name]


@pytest.fixture
def known(name: str, everything: tuple[dict[str, Known], Hung]) -> Known:
    return everything[0][name]


@pytest.fixture
def hung(everything: tuple[dict[str, Known], Hung]) -> Hung:
    return everything[1]


def cost(report: Mapping[str, Any]) -> dict[tuple[int, str], float]:
    """Seconds for which a job waited, by rank and category."""
    return {(one["rank"], one["category"]): one["seconds"] for one in report["ranks"]["waits"]}


def spent(report: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by category."""
    return {name: seconds for name, seconds in report["seconds"].items() if name in CATEGORIES and seconds}


def test_it_is_the_expected_one(story: Story, known: Known) -> None:
    report = known.recorded.report
    waited = cost(report)
    assert report["state"] == "ended" and report["ranks"]["count"] == COUNT
    if story.rank is not None:
        assert max(waited, key=waited.__getitem__) == (story.rank, story.category)
    assert spent(report)[story.category] > 0


def test_the_text_says_what_the_figures_say(story: Story, known: Known) -> None:
    title, headline, *rest = known.recorded.lines
    report = known.recorded.report
    assert f", {COUNT} ranks, " in title
    assert headline.startswith(f"goodput {report['goodput']:.2%} of ".replace("%", " %"))
    if story.rank is not None:
        assert f" of the time the job waited for rank {story.rank}, {story.category} on host " in rest[0]


def test_the_page_has_the_report(known: Known) -> None:
    page, report = known.recorded.page, dict(known.recorded.report)
    del report["configurations"]
    assert page["report"] == report
    assert page["of_ranks"] == [line for line in known.recorded.lines if line in page["of_ranks"]]
    assert page["verdict"] == known.recorded.lines[-1] and page["job"]["ranks"] == COUNT


def test_the_leader_has_the_report(known: Known) -> None:
    for name in FIELDS:
        assert known.live.report[name] == known.recorded.report[name], name
    for name in ("count", "together", "waits", "roles", "waiting_for"):
        assert known.live.report["ranks"][name] == known.recorded.report["ranks"][name], name


def test_the_metrics_are_the_report(known: Known) -> None:
    live, report = known.live, known.recorded.report
    times = {one.attributes[semconv.GOODPUT_CATEGORY]: one.value for one in live.metric(TIME)}
    assert {name: value for name, value in times.items() if value} == spent(report)
    (ratio,) = [one for one in live.metric(RATIO) if one.attributes[semconv.GOODPUT_WINDOW] == semconv.WINDOW_RUN]
    assert ratio.value == report["goodput"]
    steps = {one.attributes[semconv.GOODPUT_STEP_STATE]: one.value for one in live.metric(semconv.STEP_COUNT.name)}
    assert steps == {semconv.STEP_KEPT: report["steps"]["kept"], semconv.STEP_LOST: report["steps"]["lost"]}
    disruptions = {
        one.attributes[semconv.GOODPUT_DISRUPTION_REASON]: one.value
        for one in live.metric(semconv.DISRUPTIONS.name)
        if one.value
    }
    assert disruptions == report["disruption_reasons"]


def waited_in(points: Exported) -> dict[tuple[str, str], float]:
    """Seconds for which a job waited, by rank and category, as a metric."""
    return {
        (one.attributes[semconv.GOODPUT_RANK], one.attributes[semconv.GOODPUT_CATEGORY]): one.value
        for one in points.metric(WAIT)
    }


def test_the_metric_of_waits_is_the_report(name: str, known: Known) -> None:
    metric, waited = waited_in(known.live), cost(known.recorded.report)
    if known.recorded.report["attempts"] > 1:
        assert sum(metric.values()) < sum(waited.values()), "it is of this attempt"
        return
    by_rank = dict.fromkeys(range(COUNT), 0.0)
    for (rank, _), seconds in waited.items():
        by_rank[rank] += seconds
    least = max(LEAST / NS, sum(by_rank.values()) / WORTH)
    own = {rank for rank, seconds in by_rank.items() if seconds >= least}
    expected = Counter[tuple[str, str]]()  # ns
    for (rank, category), seconds in waited.items():
        expected[str(rank) if rank in own else semconv.OTHER_RANKS, category] += round(seconds * NS)
    assert {key: round(seconds * NS) for key, seconds in metric.items()} == expected
    assert STORIES[name].rank is None or STORIES[name].rank in own


def test_googles_series_are_the_report(known: Known) -> None:
    """Their names of categories; the time of the job, not of process 0."""
    report, points = known.recorded.report, dict[str, list[tuple[Mapping[str, str], float, int]]]()
    for one in known.live.points:
        points.setdefault(one.name, []).append((one.attributes, one.value, 0))
    rows = {(row.series, row.labels.get(google.BADPUT_SOURCE)): row.value for row in workload.rows(points)}
    seconds = spent(report)
    assert rows[google.GOODPUT_TIME, None] == seconds[Category.PRODUCTIVE]
    assert rows[google.ELAPSED_TIME, None] == pytest.approx(report["elapsed_s"])
    for category, source in google.BADPUT_SOURCES.items():
        if category not in (Category.CUSTOM, Category.IN_FLIGHT, Category.STALLED):
            assert rows[google.BADPUT_TIME, source] == pytest.approx(seconds.get(category, 0)), category
    assert rows[google.DISRUPTIONS, None] == report["disruptions"]
    assert rows[google.MAX_STEP, None] == report["max_productive_step"]


# --- alerts -----------------------------------------------------------------------------------------------------------

LENGTH_MIN = 80  # as long as jobs take for the alerts, which are made for hours,
EVALUATED = 78


def lasted(exported: Exported) -> float:
    """Seconds by the metrics; the report of a job that goes on is of a little later."""
    return sum(point.value for point in exported.metric(TIME))


def drawn_out(name: str, exported: Exported) -> list[alerts.RunMetric]:
    """The metrics of a job as if all in it took so much longer that the job lasts for LENGTH_MIN minutes."""
    factor = 60 * LENGTH_MIN / lasted(exported)

    def figure(point: Point) -> alerts.Figure:
        if point.name == semconv.LAST_SIGN.name:
            return lambda minute: 60.0 * minute
        if point.name == semconv.JOB_STATE.name:
            return flat(float(point.attributes[semconv.GOODPUT_JOB_STATE] == JobState.RUNNING))
        if point.name in (TIME, WAIT):
            return lambda minute: point.value * factor * min(1.0, minute / LENGTH_MIN)
        return flat(point.value * (factor if NAMES[point.name].unit == "s" else 1))

    return [
        alerts.RunMetric(name, NAMES[point.name], figure(point), point.attributes)
        for point in exported.points
        if point.name in NAMES and math.isfinite(point.value)
    ]


def expected_alerts(name: str, report: Mapping[str, Any], exported: Exported) -> set[str]:
    """What should fire, by the report; ranks have an alert if they have a series."""
    waits = dict[str, float]()
    for (rank, _), seconds in waited_in(exported).items():
        waits[rank] = waits.get(rank, 0.0) + seconds
    waits.pop(semconv.OTHER_RANKS, None)
    elapsed, loading = lasted(exported), spent(report).get(Category.DATA_LOADING, 0.0)
    firing = {f"JobWaitsForRank of {name}, rank {rank}" for rank, held in waits.items() if held > 0.05 * elapsed}
    firing |= {f"ProgressAtRisk of {name}"} if report["at_risk_s"] / elapsed * LENGTH_MIN > 60 else set()
    firing |= {f"GoodputBelowTarget of {name}"} if report["goodput"] < 0.8 else set()
    firing |= {f"TrainingHang of {name}"} if name == "hangs" else set()
    return firing | ({f"ExposedDataLoading of {name}"} if loading > 0.1 * elapsed else set())


@pytest.mark.parametrize("place", ["prometheus", "cloud"])
def test_the_alerts_fire_that_the_report_calls_for(
    place: str, everything: tuple[dict[str, Known], Hung], tmp_path: Path
) -> None:
    live = {name.replace(" ", "-"): known.live for name, known in everything[0].items()}
    live["hangs"] = everything[1].stopped.live
    judged = {
        name: alerts.Story(drawn_out(name, exported), {EVALUATED: expected_alerts(name, exported.report, exported)})
        for name, exported in live.items()
    }
    for name, story in {**STORIES, "hangs": HANGS}.items():
        if story.rank is not None:
            (fired,) = judged[name.replace(" ", "-")].firing.values()
            assert f"JobWaitsForRank of {name.replace(' ', '-')}, rank {story.rank}" in fired
    alerts.judge(place, judged, tmp_path)


# --- the rank that hangs ----------------------------------------------------------------------------------------------


def test_the_rank_that_hangs_is_named_while_it_does(hung: Hung) -> None:
    recorded, live = hung.stopped.recorded, hung.stopped.live
    for report in (live.report, recorded.report, recorded.page["report"]):
        one, now = report["ranks"]["waiting_for"], {one["rank"]: one for one in report["ranks"]["open"]}
        assert report["state"] == "running" and report["ranks"]["count"] == COUNT
        assert (one["rank"], one["category"]) == (HANGS.rank, HANGS.category)
        assert max(cost(report).items(), key=lambda item: item[1])[0] == (HANGS.rank, HANGS.category)
        assert {rank: (doing["phase"], doing["step"]) for rank, doing in now.items()} == {
            0: (Phase.STEP, 5), 1: (Phase.STEP, 5), 2: (Phase.DATA_LOADING, None),
        }  # fmt: skip
    assert f"of the time the job waited for rank 2, {HANGS.category} on host" in recorded.lines[2]
    assert any(line.startswith("the job waits for rank 2 on ") for line in recorded.lines)
    assert recorded.page["of_ranks"] == [recorded.lines[2]]
    named = {key: held for key, held in waited_in(live).items() if key[0] != semconv.OTHER_RANKS}
    assert max(named, key=named.__getitem__) == (str(HANGS.rank), HANGS.category)


def test_the_rank_that_hung_is_named_when_all_are_dead(hung: Hung) -> None:
    dead, before = hung.dead, hung.stopped.recorded.report
    for report in (dead.report, dead.page["report"]):
        one = report["ranks"]["waiting_for"]
        assert (report["state"], report["attempts"], report["disruptions"]) == ("died", 1, 0)
        assert (one["rank"], one["category"]) == (HANGS.rank, HANGS.category)
        assert max(cost(report).items(), key=lambda item: item[1])[0] == (HANGS.rank, HANGS.category)
        assert report["last_step"] == 5 and report["steps"] == before["steps"]
        now, then = spent(report), spent(before)
        assert now.pop(HANGS.category) >= then.pop(HANGS.category) and now == then
    lines = dead.lines
    assert lines[0].endswith(", died") and lines[1].startswith("the job died at ") and " into step 5" in lines[1]
    assert lines[3].startswith("at the end the job waited for rank 2 on ")
    assert f"of the time the job waited for rank 2, {HANGS.category} on host" in lines[4]
    assert dead.page["of_ranks"] == list(lines[3:5])


def test_roles_and_ranks_that_go_their_own_ways_are_told_so(everything: tuple[dict[str, Known], Hung]) -> None:
    roles, apart = everything[0]["two roles"].recorded, everything[0]["each for itself"].recorded
    assert [line.split(":")[0] for line in roles.page["of_ranks"][1:]] == ["role learner", "role actor"]
    assert roles.report["ranks"]["roles"].keys() == {"learner", "actor"}
    assert apart.page["of_ranks"] == [apart.lines[2]] and apart.lines[2].startswith("the ranks do not step together:")
    assert not apart.report["ranks"]["waits"]
