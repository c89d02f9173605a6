"""Each alert goes from a real Prometheus through a real Alertmanager to all receivers, once at each of its ends."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import warm
import yaml
from collector.lives import flat, run
from collector.stories import RunMetric
from exporters.google.jobs import inherited
from http_server import HttpServer, Request, Response

from boards import naming
from otel_goodput import semconv

from .alertmanager import Alertmanager, Mailbox
from .collector import CONFIGS, Collector
from .prometheus import RULES, SCRAPED, Prometheus
from .span_only import SOON

HEALTHY_MINUTE = 100  # of the stories: a run that is older than all windows but the longest
BEGAN = time.time()


def objective(name: str, **ratios: float) -> list[RunMetric]:
    """A run of ten days with an objective of 95 %."""
    elapsed = {semconv.GOODPUT_CATEGORY: semconv.Category.PRODUCTIVE}
    shown = {"5m": 0.99, "30m": 0.99, "6h": 0.99, "72h": 0.99, **{key.strip("_"): held for key, held in ratios.items()}}
    windows = [RunMetric(name, semconv.RATIO, flat(held), {semconv.GOODPUT_WINDOW: key}) for key, held in shown.items()]
    others = [one for one in run(name) if one.metric not in (semconv.TIME, semconv.RATIO)]
    return [
        *others,
        *windows,
        RunMetric(name, semconv.RATIO, flat(ratios.get("_1h", 0.99)), {semconv.GOODPUT_WINDOW: "1h"}),
        RunMetric(name, semconv.TIME, flat(864_000.0), elapsed),
        RunMetric(name, semconv.OBJECTIVE, flat(0.95)),
    ]


CRASHES = chain([0, 0], repeat(3))


def passed(minute: int) -> float:
    return time.time() - BEGAN


# What each run is in trouble with, by the alert that must come and no other.
TROUBLES: dict[str, list[RunMetric]] = {
    "GoodputBelowTarget": run("below", ratio=flat(0.5)),
    "TrainingHang": run("hang", in_step=flat(4000), at_risk=flat(9000), loading=flat(0.9), ratio=flat(0.1)),
    "RunGone": run("gone", heard=lambda minute: BEGAN - 400, unknown=flat(1), device=lambda minute: None),
    "RestartLoop": run("loop", crashes=lambda minute: next(CRASHES), ratio=flat(0.1)),
    "ProgressAtRisk": run("risk", at_risk=flat(9000)),
    "ExposedDataLoading": run("loading", loading=flat(0.5)),
    "JobWaitsForRank": run("rank", waited=lambda minute: 100 * passed(minute), loading=flat(0.5), ratio=flat(0.5)),
    "ErrorBudgetBurnsFast": objective("fast", _1h=0.2, _5m=0.2, _72h=0.8, _6h=0.8),
    "ErrorBudgetBurns": objective("burns", _6h=0.9, _72h=0.9),
    "JobIncident": run("wrong", incident=flat(1), cost=flat(125), in_step=flat(4000), loading=flat(0.5), ratio=flat(0)),
    "JobSlowdown": run("slower", slowdown=flat(1), cost=flat(125), waited=lambda minute: 100 * passed(minute)),
    "SlowRank": run("slow", gain=flat(0.2), waited=lambda minute: 100 * passed(minute), ratio=flat(0.5)),
    "ClockUnknown": run("clock", unknown=flat(1), device=lambda minute: None),
}


def exposition(metrics: list[RunMetric]) -> Iterator[str]:
    """Lines in Prometheus' text format."""
    for one in metrics:
        value = one.figure(HEALTHY_MINUTE)
        if one.metric == semconv.LAST_SIGN and value == 60.0 * HEALTHY_MINUTE:
            value = time.time()
        if value is not None:
            labels = {"job": "llama", "instance": f"{one.run}/0/0@host"}
            labels |= {naming.label(key): text for key, text in one.attributes.items()}
            text = ",".join(f"{key}={json.dumps(held)}" for key, held in labels.items())
            yield f"{naming.prometheus_metric(one.metric)}{{{text}}} {value!r}\n"


def alerts_in(body: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Status, run and name of each alert in a message to a webhook."""
    return [
        (alert["status"], alert["labels"]["goodput_run_id"], alert["labels"]["alertname"]) for alert in body["alerts"]
    ]


def hurried(place: Path) -> dict[str, Any]:
    """Our rules, evaluated each second, which hold for seconds instead of minutes; they are in ``rules.yaml``."""
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            # Symptoms come later than what causes them; so also in seconds.
            rule["for"] = f"{round(0.4 * float(rule['for'].removesuffix('m')))}s"
    (place / "rules.yaml").write_text(json.dumps(rules))
    return rules


def sent(server: HttpServer, receiver: str) -> list[dict[str, Any]]:
    return [json.loads(one.body) for one in server.requests if one.path == f"/{receiver}"]


@pytest.mark.release
def test_each_alert_arrives_once_and_ends_once(tmp_path: Path) -> None:
    healthy = threading.Event()

    def scraped(request: Request) -> Response:
        if request.path != "/metrics":
            return Response(body=b"ok")  # Slack says so
        shown = [run(one[0].run) for one in TROUBLES.values()] if healthy.is_set() else TROUBLES.values()
        return Response(body="".join(line for one in shown for line in exposition(one)).encode())

    rules = hurried(tmp_path)
    with (
        HttpServer(scraped) as server,
        Mailbox() as mailbox,
        Alertmanager(tmp_path / "alertmanager", server.url, mailbox.address) as alertmanager,
        Prometheus(
            tmp_path / "prometheus", server.url.partition("//")[2],
            rules=tmp_path / "rules.yaml", alertmanager=alertmanager.address,
        ) as prometheus,
    ):  # fmt: skip

        def to(receiver: str) -> list[dict[str, Any]]:
            return sent(server, receiver)

        def by_webhook() -> Counter[tuple[str, str, str]]:
            return Counter(one for body in to("webhook") for one in alerts_in(body))

        wanted = {("firing", metrics[0].run, name) for name, metrics in TROUBLES.items()}
        prometheus.until(lambda: by_webhook().keys() >= wanted, lambda: (by_webhook(), alertmanager.log()[-2000:]))
        begun = time.monotonic()
        # Some symptoms fire in Prometheus; whatever is to come of them comes within some intervals of a second.
        prometheus.until(lambda: time.monotonic() - begun > 8)
        firing = {(one.labels["goodput_run_id"], one.labels["alertname"]) for one in prometheus.ask("ALERTS")}
        assert len(firing) > len(TROUBLES), "symptoms fire, too"
        assert by_webhook() == dict.fromkeys(wanted, 1)

        titles = [body["attachments"][0]["title"] for body in to("slack")]
        assert sorted(titles) == sorted(f"llama, run {metrics[0].run}: {name}" for name, metrics in TROUBLES.items())
        texts = "\n".join(body["attachments"][0]["text"] for body in to("slack"))
        assert "The job waits for a rank: llama, run rank: " in texts and "of the time it waits for rank 5" in texts
        assert "Look at:\n\n1. " in texts
        assert (
            "Incident: llama, run wrong: hang, custom eval of rank 5 at dataset.py:41; such incidents have cost 2m 5s"
            in texts
        )
        assert "run slow: without rank 5, the job would be 20% faster" in texts
        critical = {rule["alert"] for rule in rules["groups"][0]["rules"] if rule["labels"]["severity"] == "critical"}
        events = [(body["event_action"], body["payload"]["severity"]) for body in to("pagerduty")]
        assert events == [("trigger", "critical")] * len(critical)
        assert sorted(str(one["subject"]) for one in mailbox.messages) == sorted(titles)

        healthy.set()
        lasting = ("RestartLoop", "JobWaitsForRank")  # which are about the last hour and the last ten minutes
        over = {("resolved", run, name) for _, run, name in wanted if name not in lasting}
        prometheus.until(lambda: by_webhook().keys() >= over, lambda: (by_webhook(), alertmanager.log()[-2000:]))
        begun = time.monotonic()
        prometheus.until(lambda: time.monotonic() - begun > 3)
        assert {one: count for one, count in by_webhook().items() if one in over} == dict.fromkeys(over, 1)
        assert any(body["attachments"][0]["title"].startswith("over: llama, run hang") for body in to("slack"))
        assert {body["event_action"] for body in to("pagerduty")} == {"trigger", "resolve"}


HANGING = """
import select, sys, time
import otel_goodput as goodput
goodput.configure("llama", run_id="run-7", incidents="100ms", profile="off", device_clock="host", integrations="none")

def loader():
    for number in range(200):
        time.sleep(0.001)
        yield number
    sys.stdin.readline()
    while not select.select([sys.stdin], [], [], 0)[0]:
        yield 0

with goodput.job():
    for step, batch in goodput.steps(loader()):
        time.sleep(0.02)
"""


@pytest.mark.release
def test_a_job_that_hangs_is_reported_with_its_cause(tmp_path: Path) -> None:
    """The job exports to the collector, which Prometheus scrapes."""
    hurried(tmp_path)
    with (
        HttpServer(lambda request: Response(body=b"ok")) as server,
        Mailbox() as mailbox,
        Alertmanager(tmp_path / "alertmanager", server.url, mailbox.address) as alertmanager,
        Collector(tmp_path / "collector", CONFIGS / "local.yaml", ports=[SCRAPED], settings=SOON) as collector,
        Prometheus(
            tmp_path / "prometheus", collector.addresses[SCRAPED],
            rules=tmp_path / "rules.yaml", alertmanager=alertmanager.address,
        ) as prometheus,
    ):  # fmt: skip
        environ = {
            **inherited(), "OTEL_GOODPUT_DIR": str(tmp_path / "runs"), "OTEL_GOODPUT_EXPORTERS": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}", "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }  # fmt: skip
        job = warm.Process(
            [sys.executable, "-c", HANGING], env=environ, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, extras=True
        )
        try:
            assert job.stdin is not None
            noticed = "JobIncident"
            prometheus.until(lambda: noticed in json.dumps(sent(server, "webhook")), lambda: prometheus.ask("ALERTS"))
            job.stdin.write(b"go on\n")
            job.stdin.flush()
            prometheus.until(
                lambda: any(body["status"] == "resolved" for body in sent(server, "webhook")),
                lambda: (prometheus.ask("goodput_incident_active"), prometheus.ask("ALERTS")),
            )
            job.stdin.write(b"end\n")
            job.stdin.flush()
            assert job.wait(30) == 0
        finally:
            job.kill()
            job.communicate()
        alerts = [alert for body in sent(server, "webhook") for alert in body["alerts"]]
        incidents = [one for one in alerts if one["labels"]["alertname"] == "JobIncident"]
        assert {one["labels"]["goodput_incident_cause"] for one in incidents} == {"data_loading"}
        assert all("hang, data_loading" in one["annotations"]["summary"] for one in incidents)
        assert {one["status"] for one in incidents} == {"firing", "resolved"}
