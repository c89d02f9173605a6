"""Every name on the wire is written down once: a literal of one elsewhere in the package is a defect."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from otel_goodput import semconv
from otel_goodput._metrics import workload_series
from otel_goodput._settings import envvars, options

from .test_layers import FILES, tree

# Words so common that they mean other things as well, such as keys of the timeline files and of the JSON answer.
COMMON = {
    "attempt",
    "job",
    "step",
    "steps",
    "custom",
    "compile",
    "run",
    "s",
    "1",
    "kept",
    "lost",
    "other",
    "crash",
    "restart",
    "signal",
}
COMMON |= {"stepping", "available", "maintenance", "preemption", "rollback", "in_flight", "otel_goodput", "gcp"}
COMMON |= {"device", "host", "unknown", "part", "running", "ended", "phases", "transform"}


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, type):
        yield from (
            member for name, member in vars(value).items() if not name.startswith("_") and isinstance(member, str)
        )


NAMES = {
    text
    for names in (semconv, workload_series)
    for name, value in vars(names).items()
    if not name.startswith("_") and not isinstance(value, type(semconv))
    for text in _strings(value)
    if re.fullmatch(r"[a-z][a-z0-9_.]*", text)
}
NAMES |= {metric.name for metric in semconv.METRICS} | {attribute.key for attribute in semconv.SPAN_ATTRIBUTES}
NAMES -= COMMON
VARIABLES = {variable.name for variable in options.ENVVARS}


def literals(module: str) -> Iterator[tuple[int, str]]:
    """String constants of a module other than docstrings and `__all__`."""
    aside: set[int] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign)):
            spelt = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            targets: list[Any] = getattr(node, "targets", [getattr(node, "target", None)])
            exported = any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)
            if (spelt or exported) and node.value is not None:
                aside.update(id(inner) for inner in ast.walk(node.value))
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in aside:
            yield node.lineno, node.value


def test_the_names_are_known() -> None:
    assert {"goodput.phase", "goodput.time", "error.type", "data_loading", "slice_down", "service.name"} <= NAMES
    assert "OTEL_GOODPUT_DIR" in VARIABLES


def _spelled(names: set[str], *defined_in: str) -> list[str]:
    return [
        f"{module}:{line}: {text!r}"
        for module in FILES
        if module not in defined_in
        for line, text in literals(module)
        if text in names
    ]


def test_no_literal_of_a_name() -> None:
    spelled = _spelled(NAMES, "semconv", "_metrics.workload_series")
    assert not spelled, "spell it semconv.…: " + ", ".join(spelled)


def test_no_literal_of_a_variable() -> None:
    spelled = _spelled(VARIABLES, "_settings.envvars", "_settings.options", "semconv")
    assert not spelled, "spell it Settings.….variable or envvars.….name: " + ", ".join(spelled)


def test_names_are_written_as_the_conventions_have_them() -> None:
    for metric in semconv.METRICS:
        assert re.fullmatch(r"[a-z]+(\.[a-z]+(_[a-z]+)*)*", metric.name)
        assert metric.brief.endswith(".") and metric.unit
        assert all(re.fullmatch(r"[a-z_.]+", key) for key in metric.attributes)
    keys = [attribute.key for attribute in semconv.SPAN_ATTRIBUTES]
    assert len(keys) == len(set(keys))
    assert len({metric.name for metric in semconv.METRICS}) == len(semconv.METRICS)
    assert len(set(semconv.CATEGORIES)) == 16 and len(set(semconv.PHASES)) == len(semconv.PHASES)


def test_every_variable_is_documented() -> None:
    for variable in (*options.ENVVARS, *envvars.STANDARD):
        assert variable.type and variable.brief and variable.name.startswith("OTEL_")
        constant = getattr(envvars, variable.name, variable)
        assert constant is variable


def test_the_selectable_integrations_exist() -> None:
    """`signals`, `maintenance` and `kubernetes` watch the platform, `torch_flops` steps, the others libraries."""
    from otel_goodput import _integrations as integrations

    libraries, names = integrations.LIBRARIES, {*options.INTEGRATIONS, *options.TRAINERS}
    assert set(libraries) | {"signals", "maintenance", "kubernetes", "torch_flops"} == names
    for name, (library, module) in libraries.items():
        assert library
        if name in options.TRAINERS:  # its module needs it
            spec = find_spec(module)
            assert spec is not None and "\ndef install(" in Path(str(spec.origin)).read_text(encoding="utf-8")
        else:
            assert callable(import_module(module).install)
