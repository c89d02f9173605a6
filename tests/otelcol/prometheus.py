"""A real Prometheus that scrapes a collector, and what it answers."""

from __future__ import annotations

import json
import math
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pytest
from ports import kept_address
from programs import located
from waits import until

from .collector import COLLECTOR

RULES = COLLECTOR / "alerts" / "prometheus.yaml"
SCRAPED = "exporters::prometheus::endpoint"  # where a collector's configuration has the address
NATIVE = "native-histograms"
PATIENCE_S = 30.0


def program() -> str:
    """Prometheus next to this interpreter or on the path; the test is skipped where there is none."""
    executable = located("prometheus")
    if executable is None:
        pytest.skip("prometheus is not here; Debian's package of that name has it")
    return executable


class Sample(NamedTuple):
    """A series of an answer: a figure, or a native histogram as the API has it."""

    labels: dict[str, str]
    value: float
    histogram: dict[str, Any]

    @property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        """Labels that are no name and no part of resource or scope, in order."""
        others = ("__name__", "job", "instance", "otel_scope_name", "otel_scope_version", "otel_scope_schema_url")
        return tuple(sorted((key, text) for key, text in self.labels.items() if key not in others))


class RangeSeries(NamedTuple):
    """A series over a time; of native histograms no values."""

    labels: dict[str, str]
    values: list[float]


class Prometheus:
    """Prometheus with our alert rules, scraping `target` (host:port) all the time; a context manager.

    Args:
        features: what is switched on in it; with :data:`NATIVE` it asks for native histograms.
        rules: a file of rules in place of ours.
        alertmanager: (host:port) to which it sends alerts.
    """

    def __init__(
        self, directory: Path, target: str, *features: str, rules: Path = RULES, alertmanager: str = ""
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "prometheus.log"
        config: dict[str, Any] = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {"job_name": "otel", "honor_labels": True, "static_configs": [{"targets": [target]}]},
            ],
        }
        if alertmanager:
            config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
        (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML too
        self._address = kept_address()
        self._command = [
            program(),
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={self._address}",
            f"--enable-feature={','.join(features)}",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        self.until(self._ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def ask(self, query: str, at: float | None = None) -> list[Sample]:
        """What it answers to a query that gives a vector, now or at a time (unix seconds)."""
        result = self.get("query", query=query, **({} if at is None else {"time": f"{at:.3f}"}))
        assert result["resultType"] == "vector", query
        return [
            Sample(each["metric"], float(each.get("value", [0, math.nan])[1]), each.get("histogram", [0, {}])[1])
            for each in result["result"]
        ]

    def query_range(self, query: str, begin: float, end: float, step: float) -> list[RangeSeries]:
        """What it answers over a time (unix seconds), every `step` seconds; no NaN."""
        result = self.get("query_range", query=query, start=f"{begin:.3f}", end=f"{end:.3f}", step=f"{step:g}")
        assert result["resultType"] == "matrix", query
        series = []
        for each in result["result"]:
            values = [float(value) for _, value in each.get("values", [])]
            numbers = [value for value in values if not math.isnan(value)]
            if numbers or each.get("histograms"):
                series.append(RangeSeries(each["metric"], numbers))
        return series

    def one(self, query: str) -> float:
        """The figure of the only series; NaN where there is none."""
        series = self.ask(query)
        assert len(series) < 2, series
        return series[0].value if series else math.nan

    def get(self, path: str, **parameters: str) -> Any:
        """The data that its API gives; fails where it says that there is an error."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            content = json.load(answer)
        assert (content["status"], content.get("warnings")) == ("success", None), content
        return content["data"]

    def until(self, condition: Callable[[], object], lacking: Callable[[], object] = str) -> None:
        """Wait for it; AssertionError with what is `lacking` at the deadline."""
        assert self._process is not None
        process = self._process

        def met() -> object:
            value = condition()
            assert value or process.poll() is None, f"Prometheus ended: {self._log.read_text()[-4000:]}"
            return value

        until(met, PATIENCE_S, lambda: f"{lacking()}; {self._log.read_text()[-2000:]}", pause=0.05)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
