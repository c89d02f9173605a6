"""Examples in the docstrings of the public names run."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

import otel_goodput
from otel_goodput._recording.contexts import PhaseContext
from otel_goodput._runtime.recorder import Recorder


def documented() -> Iterator[tuple[str, str]]:
    """(name, docstring) of everything that a user calls."""
    yield "otel_goodput", inspect.getdoc(otel_goodput) or ""
    owners: list[Any] = [Recorder, PhaseContext, otel_goodput.GoodputSpanProcessor]
    for name in otel_goodput.__all__:
        yield name, inspect.getdoc(getattr(otel_goodput, name)) or ""
    for owner in owners:
        for name, member in inspect.getmembers(owner, callable):
            if not name.startswith("_"):
                yield f"{owner.__name__}.{name}", inspect.getdoc(member) or ""


def examples() -> Iterator[tuple[str, str]]:
    for name, text in documented():
        for block in re.findall(r"::\n\n((?:(?: {4}.*)?\n)+)", text + "\n"):
            yield name, textwrap.dedent(block).strip()


EXAMPLES = sorted(set(examples()))


def test_there_are_examples() -> None:
    assert {"otel_goodput", "GoodputSpanProcessor"} <= {name for name, _ in EXAMPLES}


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_example(name: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTEL_GOODPUT_EXPORTERS", "none")
    provider, meter_provider = TracerProvider(shutdown_on_exit=False), MeterProvider(shutdown_on_exit=False)
    stand_ins = {
        "goodput": otel_goodput,
        "GoodputSpanProcessor": otel_goodput.GoodputSpanProcessor,
        "loader": range(3),
        "state": 0,
        "train_step": lambda state, batch: (state + batch, 0.0),
        "provider": provider,
        "meter_provider": meter_provider,
    }
    exec(compile(example, name, "exec"), stand_ins)
    provider.shutdown()
    meter_provider.shutdown()


def test_every_public_name_is_documented() -> None:
    for name, text in documented():
        assert text or name == "__version__", name
