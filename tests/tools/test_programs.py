"""Programs that are recorded without a line: in notebooks, and by ``opentelemetry-instrument``."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import otel_goodput as goodput
from otel_goodput import testing
from otel_goodput._programs.instrumentor import GoodputInstrumentor, is_program


class Shell:
    """As much of IPython's shell as an extension needs."""

    def __init__(self) -> None:
        self.magics: dict[str, Any] = {}
        self.names: dict[str, Any] = {}

    def register_magic_function(self, func: Any, magic_kind: str = "line", magic_name: str | None = None) -> None:
        self.magics[f"{magic_kind} {magic_name}"] = func

    def run_cell(self, raw_cell: str) -> Any:
        error = None
        try:
            exec(raw_cell, self.names)
        except Exception as raised:
            error = raised
        return SimpleNamespace(error_before_exec=None, error_in_exec=error)


LOOP = "for step, _ in goodput.steps(range(3)): pass"


def test_a_cell_is_a_job_and_the_report_is_shown() -> None:
    shell = Shell()
    goodput.load_ipython_extension(shell)
    magic = shell.magics["line_cell goodput"]
    shell.names["goodput"] = goodput
    with testing.run():
        report = magic("mine", LOOP)
        assert report.about["job_name"] == "mine" and report.totals.kept == 3 and report.totals.finished
        assert magic("").totals.kept == 3
        failed = magic("other", f"{LOOP}\n1 / 0").totals
        assert failed.kept == 3 and failed.ended and not failed.finished
    assert "IPython" not in sys.modules


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py", True),
        ("python -u -X dev -W error train.py torchrun", True),
        ("python -m package.train", True),
        ("python /env/bin/torchrun --nproc-per-node 2 train.py", False),
        ("python -m torch.distributed.run train.py", False),
        ("python -m accelerate.commands.launch train.py", False),
        ("python -c import_this", False),
        ("python", False),
    ],
)
def test_launchers_and_children_are_no_programs(command: str, expected: bool) -> None:
    assert is_program(command.split()) is expected


def test_the_instrumentor_records_once_a_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr("otel_goodput._programs.recording.begin", lambda name, _: begun.append(name))
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py"])
    GoodputInstrumentor()._instrument()
    assert begun == []
    monkeypatch.setenv("OTEL_GOODPUT_RUN_NAME", "mine")
    GoodputInstrumentor()._instrument()
    GoodputInstrumentor()._instrument()
    assert begun == ["mine"]
