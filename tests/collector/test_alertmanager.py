"""Alertmanager takes the configuration that is shipped, and sends each alert to the receiver that it says."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from programs import located

from boards.alerts import rules

from .written import COLLECTOR, ROUTING, load

CONFIG = COLLECTOR / ROUTING


def amtool(*arguments: str) -> str:
    """What Alertmanager's tool prints; it is next to this interpreter or on the path."""
    executable = located("amtool")
    if executable is None:
        pytest.skip("amtool is not here; go install github.com/prometheus/alertmanager/cmd/amtool@v0.28.1")
    done = subprocess.run([executable, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_alertmanager_takes_it() -> None:
    text = amtool("check-config", str(CONFIG))
    assert "SUCCESS" in text and "4 receivers" in text


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (("goodput_run_id=run-7", "severity=critical"), "pagerduty,slack"),
        (("goodput_run_id=run-7", "severity=warning"), "slack"),
    ],
)
def test_where_alerts_go(labels: tuple[str, ...], receivers: str) -> None:
    assert amtool("config", "routes", "test", f"--config.file={CONFIG}", *labels).strip() == receivers


def test_no_alert_is_explained_in_a_circle() -> None:
    """Two that inhibit each other would both be silent."""
    explained: dict[str, set[str]] = {}
    entries: list[dict[str, Any]] = load(ROUTING)["inhibit_rules"]
    for entry in entries:
        (source,), (target,) = entry["source_matchers"], entry["target_matchers"]
        assert entry["equal"] == ["job", "goodput_run_id"]
        explained[source.split('"')[1]] = set(target.split('"')[1].split("|"))
    names = {rule.name for rule in rules()}
    assert explained.keys() <= names and set().union(*explained.values()) <= names

    def below(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, above
        for symptom in explained.get(name, ()):
            below(symptom, (*above, name))

    for name in explained:
        below(name, ())
