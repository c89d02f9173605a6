"""What a real loop records of a step that stands still (rule R10)."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import warm

from otel_goodput._settings import config

JOB = textwrap.dedent("""
    import json, sys, time
    import otel_goodput as goodput
    goodput.configure("j", run_id="j", exporters="none", directory=sys.argv[1], stalled_after="100ms")
    hung = []
    def step(number, hangs):
        if number == hangs:
            begun = time.monotonic()
            time.sleep(0.5)
            hung.append(time.monotonic() - begun)
        else:
            time.sleep(0.001)
    with goodput.job():
        for epoch in range(3):
            for number, _ in goodput.steps(range(5)):
                step(number, 12)  # the loop of an epoch is the same loop: this is its thirteenth step
        for number, _ in goodput.steps(range(7)):
            step(number, 20)  # the sixth of another loop: nobody knows yet what is usual there
        live = goodput.report().to_json()
        with goodput.step(22):
            time.sleep(0.5)
            open_now = goodput.report().to_json()
    print(json.dumps([hung, live, open_now, goodput.report().to_json()]))
    """)


def test_a_step_that_stands_still_is_stalled_from_its_limit_on(tmp_path: Path) -> None:
    done = warm.run([sys.executable, "-c", JOB, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True)
    hung, live, open_now, after = json.loads(done.stdout)
    stalled = live["seconds"]["stalled"]
    assert 0.4 <= stalled <= hung[0] + 0.1, "of the second loop's, nothing"
    assert live["step_time"]["max_s"] >= 0.5, "it is in full what is not judged yet"
    assert open_now["seconds"]["stalled"] >= stalled + 0.3, "a step that hangs is stalled while it hangs"
    assert after["seconds"]["stalled"] >= open_now["seconds"]["stalled"]
    # Whoever reads the journal answers the same.
    command = [sys.executable, "-m", "otel_goodput", "report", str(tmp_path / "j"), "--json"]
    read: dict[str, Any] = json.loads(warm.run(command, capture_output=True, timeout=60, check=True).stdout)
    assert read["seconds"]["stalled"] == pytest.approx(after["seconds"]["stalled"], abs=1e-9)


def test_the_limit_is_an_option_and_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.read("job").stalled_after is None
    assert config.read("job", stalled_after=90).stalled_after == 90 * 10**9
    monkeypatch.setitem(os.environ, "OTEL_GOODPUT_STALLED_AFTER", "5m")
    assert config.read("job").stalled_after == 300 * 10**9
    monkeypatch.setitem(os.environ, "OTEL_GOODPUT_STALLED_AFTER", "soon")
    assert config.read("job").stalled_after is None
