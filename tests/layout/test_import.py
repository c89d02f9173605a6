"""`import otel_goodput` is light: no more than OpenTelemetry's SDK and ourselves, nothing opened, nothing started."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

import otel_goodput

HEAVY = (
    "jax",
    "jaxlib",
    "orbax",
    "optax",
    "flax",
    "numpy",
    "grpc",
    "google",
    "fsspec",
    "requests",
    "urllib3",
    "tensorboard",
    "opentelemetry.exporter",
    "opentelemetry.proto",
    "otel_goodput.exporters.file",
    "otel_goodput._tools.cli",
    "otel_goodput._tools.doctor",
    "asyncio",
    "multiprocessing",
    "http.client",
    "sqlite3",
)
SDK = "opentelemetry.sdk.trace.export, opentelemetry.sdk.metrics.export, opentelemetry.sdk.resources"


def after(code: str) -> dict[str, Any]:
    """What a new interpreter has after `code`."""
    script = f"""
import json, sys, threading, os
before = set(sys.modules)
{code}
print(json.dumps({{
    "modules": sorted(set(sys.modules) - before),
    "threads": threading.active_count(),
}}))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    """After everything that a configured recorder needs is loaded."""
    return after("import otel_goodput; otel_goodput.configure")


def test_importing_is_nearly_nothing() -> None:
    """The SDK comes with the first name that is used."""
    own = {"otel_goodput"}
    standard = {name for name in after("import otel_goodput")["modules"] if name not in own}
    assert standard <= set(after("import importlib, typing, warnings")["modules"])


def test_every_name_comes_when_asked() -> None:
    """Whatever was imported before: a module called like a public name would stand in its way."""
    names = otel_goodput.__all__
    assert [name for name in names if getattr(otel_goodput, name) is None or name not in dir(otel_goodput)] == []
    assert [name for name in names if find_spec(f"otel_goodput.{name}") is not None] == []


def test_other_names_are_none() -> None:
    with pytest.raises(AttributeError, match="no attribute 'stpe'"):
        otel_goodput.stpe  # type: ignore[attr-defined]


def test_it_brings_nothing_heavy(ours: dict[str, Any]) -> None:
    sdk = set(after(f"import {SDK}")["modules"])  # some of them need a part of what is heavy
    for name in HEAVY:
        heavy = {module for module in ours["modules"] if module == name or module.startswith(name + ".")}
        if name in ("asyncio", "multiprocessing", "http.client", "numpy"):
            heavy -= sdk
        assert not heavy, name


def test_it_brings_the_sdk_and_itself(ours: dict[str, Any]) -> None:
    sdk = set(after(f"import {SDK}, opentelemetry.sdk.metrics.view")["modules"])
    more = set(ours["modules"]) - sdk
    foreign = {name for name in more if name.partition(".")[0] not in {*sys.stdlib_module_names, "otel_goodput"}}
    assert {name for name in foreign if not name.startswith("opentelemetry.")} == set()
    standard = {name for name in more if name.partition(".")[0] in sys.stdlib_module_names}
    assert len(standard) <= 40, sorted(standard)


def test_it_starts_nothing(ours: dict[str, Any]) -> None:
    assert ours["threads"] == 1


def test_it_works_without_any_extra() -> None:
    """With every optional package out of reach: configure, train, report."""
    blocked = "jax orbax optax grpc google fsspec requests tensorboard numpy opentelemetry.exporter opentelemetry.proto"
    result = after(f"""
for name in {blocked.split()!r}:
    sys.modules[name] = None
import tempfile
import otel_goodput as goodput
with tempfile.TemporaryDirectory() as directory:
    goodput.configure("bare", directory=directory, exporters="file,console")
    with goodput.job():
        for _ in goodput.steps(range(3)):
            pass
    goodput.shutdown()
    assert goodput.report().to_json()["steps"]["kept"] == 3
""")
    assert "otel_goodput._runtime.recorder" in result["modules"]


def test_a_command_imports_only_what_it_runs() -> None:
    """The list of the commands needs none of them, and one command not the others."""
    listed = after("from otel_goodput._tools.cli import command_parser; command_parser('').format_help()")["modules"]
    assert not [name for name in listed if name.startswith(("otel_goodput.reports", "otel_goodput._viewer"))]
    loaded = after("from otel_goodput._tools.cli import command_parser; command_parser('collector')")["modules"]
    commands = {name for name in loaded if name.startswith("otel_goodput._tools.")}
    assert not {"otel_goodput._tools.report", "otel_goodput._tools.send.command"} & commands
    assert "otel_goodput._tools.collector.command" in commands
