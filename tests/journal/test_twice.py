"""What an exporter has had, a restart does not give it once more: whatever others have not had, and however the process
went.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
import warm
from crash.exported import check_tree, read_spans

from otel_goodput.exporters.registry import OURS, numbers

JOB = """
import os, sys
import otel_goodput as goodput
from opentelemetry.sdk.trace import TracerProvider
provider = TracerProvider(shutdown_on_exit=False) if sys.argv[4:] == ["own"] else None
recorder = goodput.configure("job", run_id="run", directory=sys.argv[1], exporters=sys.argv[2].split(","),
                             integrations="none", tracer_provider=provider)
with goodput.job():
    for step, _ in goodput.steps(range(2500), start=0):
        if step == 2300 and sys.argv[3] == "exit":
            goodput.flush()
            os._exit(3)
goodput.shutdown()
"""
DEAD = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_GOODPUT_GRACE_PERIOD": "1"}


PROVIDERS = ("ours", "own")  # "own": one of the user's


@pytest.mark.parametrize(
    ("provider", "end", "exporters"),  # every two of them together; all three before a release
    [
        pytest.param(provider, end, exporters, marks=[pytest.mark.release] * ((i + j + k) % 2))
        for i, provider in enumerate(PROVIDERS)
        for j, end in enumerate(("exit", "return"))
        for k, exporters in enumerate(("file", "file,otlp"))
    ],
)
def test_no_span_is_written_twice(provider: str, end: str, exporters: str, tmp_path: Path) -> None:
    """After ``os._exit``, and where of two exporters one cannot be reached: the other had everything, summaries too."""
    for ending in (end, "return"):
        warm.run([sys.executable, "-c", JOB, str(tmp_path), exporters, ending, provider], env={**os.environ, **DEAD})
    spans = read_spans(tmp_path / "run")
    assert len(check_tree(spans)) == len(spans)
    names = Counter(span.name for span in spans)
    assert (names["attempt"], names["job"]) == (2, 2)
    numbers = Counter(span.attributes["goodput.step"] for span in spans if span.name == "step")
    summed = sum(span.attributes["goodput.steps.count"] for span in spans if span.name == "steps")
    assert numbers.total() + summed == 2500 + (2301 if end == "exit" else 2500), "nor is one missing"


BATCH = 512  # spans that the SDK exports at once, by default
CUT = """
import os, signal, sys
from otel_goodput.exporters.file import FileSpanExporter
export = FileSpanExporter.export
def export_and_die(self, spans):
    done = export(self, spans)
    if any(span.name == "job" for span in spans):
        os.kill(os.getpid(), signal.SIGKILL)
    return done
FileSpanExporter.export = export_and_die
"""


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_is_written_twice_all_the_same_is_the_same(provider: str, tmp_path: Path) -> None:
    """Killed when a batch is in the file and nobody has noted that yet: a link to the next attempt is not added."""
    for before in (CUT, ""):
        killed = warm.run(
            [sys.executable, "-c", before + JOB, str(tmp_path), "file", "return", provider], check=not before
        )
        assert killed.returncode == (-signal.SIGKILL if before else 0)
    spans = read_spans(tmp_path / "run")
    twice = len(spans) - len(check_tree(spans))
    assert 0 < twice <= BATCH, "one batch at most"
    assert Counter(span.name for span in spans)["job"] == 3


def test_every_exporter_has_a_number_of_its_own() -> None:
    known = {"console": 32, "file": 33, "gcp": 34, "gcp-otlp": 35, "otlp": 36, "workload": 37, "tensorboard": 38}
    assert numbers(OURS) == known, "once given for good: a restart reads what another version wrote"
