"""The dashboard's search for slow steps, asked of a real Jaeger as Grafana asks it, finds a slow step's trace."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from collector.written import load
from waits import until

from otel_goodput import Recorder, semconv

from .jaeger import Jaeger

STEPS = 60
SLOW = 40


def trained(directory: Path, run: str, slow: int | None = None) -> None:
    """A job that ends, whose step `slow` takes far longer than the others."""
    recorder = Recorder("llama", directory=directory, run_id=run, exporters="otlp", integrations="none")
    with recorder, recorder.job():
        for number in range(STEPS):
            with recorder.step(number):
                time.sleep(0.4 if number == slow else 0.004)


def search_of(run: str, begin: float, end: float) -> dict[str, str]:
    """The parameters of Jaeger's API that Grafana's datasource makes of the panel's query (times in unix seconds)."""
    (row,) = [one for one in load("dashboards/goodput.grafana.json")["panels"] if one["title"].endswith("In Jaeger")]
    target = row["panels"][0]["targets"][0]
    tags = dict(pair.split("=") for pair in shlex.split(target["tags"].replace("$run", run)))
    return {
        "service": target["service"].replace("$job", "llama"),
        "operation": target["operation"],
        "tags": json.dumps(tags),
        "limit": str(target["limit"]),
        "start": f"{begin * 1e6:.0f}",
        "end": f"{end * 1e6:.0f}",
        "lookback": "custom",
    }


@pytest.mark.attack  # where it is not installed, a Jaeger takes ten minutes to build
def test_the_trace_of_a_slow_step_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.time()
    with Jaeger(tmp_path / "jaeger") as jaeger:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{jaeger.grpc}")
        trained(tmp_path / "even", "run-7")
        trained(tmp_path / "slow", "run-70", SLOW)

        def traces_of(run: str) -> list[dict[str, Any]]:
            traces: list[dict[str, Any]] = jaeger.get("traces", **search_of(run, begin, time.time()))
            return traces

        until(lambda: traces_of("run-70"), 30.0)
        (trace,) = traces_of("run-70")
        spans = [{tag["key"]: tag["value"] for tag in span["tags"]} for span in trace["spans"]]
        slow = [span for span in spans if span.get(semconv.GOODPUT_STEP_OUTLIER)]
        assert SLOW in [span[semconv.GOODPUT_STEP] for span in slow]
        process = {tag["key"]: tag["value"] for tag in next(iter(trace["processes"].values()))["tags"]}
        assert process[semconv.RUN_ID] == "run-70"
        assert trace["traceID"] == process[semconv.TRACE_ID]  # what the table of attempts links to
        every = {"service": "llama", "operation": "step", "start": "0", "end": f"{time.time() * 1e6:.0f}"}
        assert len(jaeger.get("traces", limit="50", lookback="custom", **every)) == 2, "run-7 is there, too"
