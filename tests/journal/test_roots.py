"""The root of an attempt's trace over restarts: written once."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
import warm
from crash.exported import Span, check_tree, job_identity, read_spans, root_identity

from otel_goodput import Recorder, open_run

from .test_golden import unpack

KILLED = """
import os, signal, sys
import otel_goodput as goodput
recorder = goodput.configure("job", run_id="run", directory=sys.argv[1], exporters="file", integrations="none")
with goodput.job():
    if sys.argv[2] == "flushed":
        recorder.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def goes_on(directory: Path) -> list[Span]:
    """All that is exported after a further attempt of the run in `directory`."""
    recorder = Recorder("job", run_id="run", directory=directory, exporters="file", integrations="none")
    with recorder.job(), recorder.step(1000):
        pass
    recorder.shutdown()
    return read_spans(directory / "run")


@pytest.mark.parametrize("left", ["flushed", "held back"])
def test_the_root_of_a_killed_attempt_is_written_once(left: str, tmp_path: Path) -> None:
    """By itself where it had left before anything else did, else by the attempt after it."""
    for attempt in range(2):
        done = warm.run([sys.executable, "-c", KILLED, str(tmp_path), left], check=False, timeout=60)
        assert done.returncode == -signal.SIGKILL
        before = read_spans(tmp_path / "run")
        alone = [(span.trace, span.key) for span in before if span.name == "attempt"]
        assert alone[-1:] == ([root_identity("run", attempt)] if left == "flushed" else []), "the job is still open"
    spans = goes_on(tmp_path)
    assert len(check_tree(spans)) == len(spans), "no span is there twice"
    for attempt in range(3):
        trace, root = root_identity("run", attempt)
        assert [span.key for span in spans if span.trace == trace and not span.parent] == [root]
        (job,) = (span for span in spans if (span.trace, span.key) == job_identity("run", attempt))
        assert job.parent == root and job.interrupted == (attempt < 2)
        # Whoever ends the job of one that died knows the one after it.
        neighbors = [attempt - 1] * (attempt > 0) + [attempt + 1] * (attempt < 2)
        assert job.links == tuple(root_identity("run", each) for each in neighbors)


DROPPED = """
import os, signal, sys
import otel_goodput as goodput
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
with goodput.Recorder("job", run_id="run", directory=sys.argv[1], exporters="file", integrations="none",
                      tracer_provider=TracerProvider(ALWAYS_OFF, shutdown_on_exit=False)) as recorder:
    with recorder.job(), recorder.custom("evaluation"), recorder.checkpoint_save(0):
        if sys.argv[2] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_the_users_sampler_dropped_is_not_exported_by_the_next_attempt_either(tmp_path: Path) -> None:
    for end in ("killed", "killed", "returned"):
        done = warm.run([sys.executable, "-c", DROPPED, str(tmp_path), end], check=False, timeout=60)
        assert done.returncode == (-signal.SIGKILL if end == "killed" else 0)
    assert not read_spans(tmp_path / "run")
    report = open_run(tmp_path, "run").report().to_json()
    assert report["attempts"] == 3 and report["seconds"]["custom"]["evaluation"] > 0


@pytest.mark.parametrize("name", ["dead", "sealed", "observed-dead"])
def test_attempts_that_an_earlier_build_recorded_keep_their_roots(name: str, tmp_path: Path) -> None:
    """Told by segments, compressed ones and snapshots: an attempt after them ends what is open, and writes no root."""
    unpack(name, tmp_path)
    before = {(span.trace, span.key) for span in read_spans(tmp_path / "run") if span.name == "attempt"}
    spans = goes_on(tmp_path)
    by_id = check_tree(spans)
    assert len(by_id) == len(spans), "no span is there twice"
    attempts = sorted({span.resource["goodput.attempt"] for span in spans})
    assert attempts == list(range(len(attempts))) and len(attempts) > 1
    assert before <= {root_identity("run", attempt) for attempt in attempts[:-1]}
    for attempt in attempts:
        root, job = by_id[root_identity("run", attempt)], by_id[job_identity("run", attempt)]
        assert (root.name, root.parent, job.name, job.parent) == ("attempt", "", "job", root.key)
        theirs = Counter(span.name for span in spans if span.trace == root.trace)
        assert theirs["attempt"] == 1 and theirs["job"] == 1
        assert root.links == tuple(root_identity("run", attempt - 1) for _ in range(min(attempt, 1)))
