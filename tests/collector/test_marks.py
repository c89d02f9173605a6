"""A disruption is marked on the dashboard when it is recorded, nothing else is: Prometheus' own evaluator says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_goodput.semconv import Reason

from .lives import lives, stairs
from .stories import Story, ask, series
from .written import load

OTHER = lives(range(180), name="run-70", crashes=stairs(30))  # another run, whose name begins alike
# Its two attempts, and a rollback before its first export.
RESTARTED = Story([*lives(range(60), range(75, 180), crashes=stairs(75, 100)), *OTHER], {}, (0, 75))
# An attempt that died before it exported anything.
UNHEARD = Story([*lives(range(10, 180), crashes=stairs(0)), *OTHER], {})


@pytest.mark.parametrize(
    ("story", "minute", "reasons"),
    [
        (RESTARTED, 0, {Reason.ROLLBACK: 1}), (RESTARTED, 4, {Reason.ROLLBACK: 1}), (RESTARTED, 6, {}),
        (RESTARTED, 31, {}), (RESTARTED, 59, {}), (RESTARTED, 70, {}), (RESTARTED, 74, {}),
        (RESTARTED, 75, {Reason.CRASH: 1}), (RESTARTED, 79, {Reason.CRASH: 1}), (RESTARTED, 81, {}),
        (RESTARTED, 99, {}), (RESTARTED, 100, {Reason.CRASH: 2}), (RESTARTED, 106, {}), (RESTARTED, 179, {}),
        (UNHEARD, 9, {}), (UNHEARD, 10, {Reason.CRASH: 1, Reason.ROLLBACK: 1}), (UNHEARD, 16, {}),
    ],
)  # fmt: skip
def test_a_disruption_is_marked_when_it_is_announced(
    story: Story, minute: int, reasons: dict[Reason, int], tmp_path: Path
) -> None:
    marks = {one["name"]: one["expr"] for one in load("dashboards/goodput.grafana.json")["annotations"]["list"]}
    samples = [
        {"labels": f'{{goodput_disruption_reason="{reason}"}}', "value": count} for reason, count in reasons.items()
    ]
    expression = marks["Disruptions"].replace("$job", "llama").replace("${run:regex}", "run-7")
    question = {"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples}
    ask({"groups": []}, tmp_path, {"input_series": series("prometheus", story), "promql_expr_test": [question]})
