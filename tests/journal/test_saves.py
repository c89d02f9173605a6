"""What is recorded of a checkpoint, live and by whoever recovers it, is the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import warm
from crash.exported import read_spans

import otel_goodput as goodput

SAVER = """
import os, sys
import otel_goodput as goodput
goodput.configure("saves", run_id="run", directory=sys.argv[1], exporters=sys.argv[2])
with goodput.job():
    with goodput.checkpoint_save(1):
        pass
    with goodput.checkpoint_save(2, durable=False):
        pass
    try:
        with goodput.checkpoint_save(3):
            raise OSError("disk")
    except OSError:
        pass
    with goodput.checkpoint_save(4):
        if sys.argv[3] == "die":
            os._exit(0)
        goodput.shutdown()
"""


def durable_by_step(folder: Path) -> dict[object, object]:
    return {
        span.attributes["goodput.step"]: span.attributes["goodput.checkpoint.durable"]
        for span in read_spans(folder)
        if span.name == "checkpoint_save"
    }


@pytest.mark.parametrize(("exporters", "ending"), [("file", "close"), ("none", "die")], ids=["live", "recovered"])
def test_durable_is_what_is_known_to_be(tmp_path: Path, exporters: str, ending: str) -> None:
    warm.run([sys.executable, "-c", SAVER, str(tmp_path), exporters, ending], check=True, timeout=60)
    if ending == "die":
        goodput.Recorder("saves", run_id="run", directory=tmp_path, exporters="file").shutdown()
    assert durable_by_step(tmp_path / "run") == {1: True, 2: False, 3: False, 4: False}


LEAVER = """
import os, sys
import otel_goodput as goodput
goodput.configure("left", run_id="run", directory=sys.argv[1], exporters=sys.argv[2])
job = goodput.job()
job.__enter__()
for number in goodput.steps(range(9)):
    break
del number
loop = goodput.steps(range(9), start=1)
next(loop)
loop.close()
try:
    with goodput.step(2):
        raise ValueError("loss")
except ValueError:
    pass
if sys.argv[2] == "none":
    os._exit(0)
"""


def test_a_step_that_was_left_is_no_error_unless_it_was_one(tmp_path: Path) -> None:
    saves = []
    for exporters in ("file", "none"):
        directory = tmp_path / exporters
        warm.run([sys.executable, "-c", LEAVER, str(directory), exporters], check=True, timeout=60)
        if exporters == "none":
            goodput.Recorder("left", run_id="run", directory=directory, exporters="file").shutdown()
        steps = [span for span in read_spans(directory / "run") if span.name == "step"]
        saves.append(
            [
                (span.attributes["goodput.step"], span.status, span.attributes["goodput.step.completed"])
                for span in sorted(steps, key=lambda span: span.start)
            ]
        )
    assert saves[0] == saves[1] == [(0, 0, False), (1, 0, False), (2, 2, False)]


def test_the_dead_attempt_keeps_its_name(tmp_path: Path) -> None:
    warm.run([sys.executable, "-c", SAVER, str(tmp_path), "none", "die"], check=True, timeout=60)
    goodput.Recorder("saves", run_id="run", directory=tmp_path, exporters="file").shutdown()
    exported = [span.resource for span in read_spans(tmp_path / "run") if span.name == "checkpoint_save"]
    assert exported and all(resource["goodput.attempt"] == 0 for resource in exported)
    assert all(str(resource["service.instance.id"]).startswith("run/0/0@") for resource in exported)
