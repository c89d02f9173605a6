"""Tables in the documentation, made of the package and its tests.

``python docs/tables.py`` rewrites them, ``--check`` compares.

A table stands between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->``.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import get_args, get_type_hints, is_typeddict

from otel_goodput.accounting import rules
from otel_goodput.envvars import ENVVARS, STANDARD, EnvVar
from otel_goodput.exporters import registry
from otel_goodput.exporters.spec import METRICS as METRIC_SIGNAL
from otel_goodput.exporters.spec import TRACES
from otel_goodput.options import OF_VARIABLE, OPTIONS
from otel_goodput.recording.phases import Phases
from otel_goodput.reports import fields
from otel_goodput.reports.advice import EXPLAINED
from otel_goodput.reports.fields import PartitionFields, ReportFields
from otel_goodput.semconv import CATEGORIES, METRICS, PHASES, SPAN_ATTRIBUTES, Category, Phase

ROOT = Path(__file__).parents[1]


# How each phase is written, where that is more than its name.
CALLS = {
    Phase.STEP: "step(n)",
    Phase.CHECKPOINT_SAVE: "checkpoint_save(n)",
    Phase.CHECKPOINT_RESTORE: "checkpoint_restore(n)",
    Phase.CUSTOM: 'custom("eval")',
    Phase.ELASTIC_WAIT: 'elastic_wait("slice_down")',
    Phase.PART: 'part("forward")',
}
# What its time counts as, where the rules do not say it in one word.
COUNTS = {
    Phase.JOB: "`other`, where nothing else is open",
    Phase.STEP: "`productive`, `wasted_progress` or `in_flight`",
    Phase.ELASTIC_WAIT: "`elastic_slice_down` or `elastic_scale_up`",
    Phase.EXCLUSION: "nothing",
    Phase.PART: "nothing: the time stays the step's",
}
# What they are that nobody opens.
UNOPENED = {
    Phase.COMPILE: "A compilation: those of jax are seen by themselves",
    Phase.PART: "A part of a step, such as the forward pass",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    cells = [list(head), ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _plain(text: str) -> str:
    """The first sentence of a docstring, as Markdown."""
    sentence = " ".join(text.split()).split(". ")[0].rstrip(".").replace("``", "`")
    return re.sub(r" \(rule R\d\)", "", sentence)


def phases() -> str:
    def row(phase: str) -> Sequence[str]:
        method = getattr(Phases, phase, None)
        text = _plain(method.__doc__ or "") if method else UNOPENED[phase]
        call = f"`{CALLS.get(phase, f'{phase}()')}`" if method else ""
        owner = rules.OWNERS.get(rules.PHASE_INDEX[phase])
        return f"`{phase}`", call, COUNTS.get(phase) or f"`{CATEGORIES[owner or 0]}`", text

    return table(("phase", "`goodput.…`", "counts as", "what it is"), map(row, PHASES))


def badput() -> str:
    return table(
        ("category", "time spent …", "what usually helps"),
        ((f"`{name}`", *EXPLAINED[name]) for name in CATEGORIES if name != Category.PRODUCTIVE),
    )


def metrics() -> str:
    return table(
        ("metric", "instrument", "unit", "attributes", ""),
        (
            (f"`{one.name}`", one.kind, f"`{one.unit}`", ", ".join(f"`{key}`" for key in one.attributes), one.brief)
            for one in METRICS
        ),
    )


def attributes() -> str:
    return table(
        ("attribute", "type", "on", ""),
        ((f"`{one.key}`", one.type, one.on, one.brief) for one in SPAN_ATTRIBUTES),
    )


def environment() -> str:
    def row(one: EnvVar) -> Sequence[str]:
        argument = OF_VARIABLE.get(one.name, "")
        default = f"`{one.default}`" if one.default else ""
        return f"`{one.name}`", f"`{argument}`" if argument else "", one.type, default, one.brief

    return table(("variable", "argument", "type", "default", ""), map(row, (*ENVVARS, *STANDARD)))


def arguments() -> str:
    """Those that have no variable."""
    rows = ((f"`{name}`", one.brief) for name, one in OPTIONS.items() if one.variable is None)
    return table(("argument", ""), rows)


def exporters() -> str:
    def row(name: str) -> Sequence[str]:
        one = registry.spec(name)
        takes = ("yes" if signal in one.signals else "" for signal in (TRACES, METRIC_SIGNAL))
        return f"`{name}`", *takes, one.brief + (f"; extra `{one.extra}`" if one.extra else "")

    return table(("exporter", "spans", "metrics", ""), map(row, registry.OURS))


def outcomes() -> ModuleType:
    """What the tests of the collector show."""
    spec = importlib.util.spec_from_file_location("outcomes", ROOT / "tests/otelcol/outcomes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def beside() -> str:
    rows = ((name + each.more, each.otlp, each.classic) for name, each in outcomes().BESIDE.items())
    return table(("fault", "`gcp-sidecar`", "`gcp-sidecar-classic`"), rows)


def elsewhere() -> str:
    rows = ((each.fault + (" (by hand)" if not each.shown else ""), each.outcome) for each in outcomes().ELSEWHERE)
    return table(("fault", "outcome"), rows)


def codes() -> str:
    found = outcomes()
    retried, refused = (", ".join(f"`{code}`" for code in group) for group in (found.RETRIED, found.REFUSED))
    rows = (f"{retried}; {found.THROTTLED}", found.THEN_RETRIED), (refused, found.THEN_REFUSED)
    return table(("code", "then"), rows)


def report_fields() -> str:
    """A report's JSON: every type, with its fields as its docstring explains them."""
    found = [ReportFields, *(one for one in vars(fields).values() if is_typeddict(one) and one is not ReportFields)]
    return "\n".join(_fields(one) for one in found if not one.__name__.startswith("_"))


def _fields(one: type) -> str:
    text, types = (one.__doc__ or "").partition("Attributes:")[0], get_type_hints(one)
    told = _told(one)
    of_partitions = {name: what for names, what in _told(PartitionFields) for name in names}
    told += [([name], of_partitions.get(name, "")) for name in types if not any(name in names for names, _ in told)]
    rows = (
        (", ".join(f"`{name}`" for name in names), ", ".join(dict.fromkeys(map(_type, map(types.get, names)))), what)
        for names, what in ((names, what.replace("``", "`")) for names, what in told)
        if all(name in types for name in names)
    )
    return f"### {one.__name__}\n\n{' '.join(text.split()).replace('``', '`')}\n\n" + table(("field", "type", ""), rows)


def _told(one: type) -> list[tuple[list[str], str]]:
    """Names of fields, and what the docstring says of them together."""
    attributes = re.sub(r"\n {12}", " ", (one.__doc__ or "").partition("Attributes:")[2])  # lines that go on
    return [(names.split(", "), what) for names, what in re.findall(r"^ {8}([\w, ]+): (.*)$", attributes, re.MULTILINE)]


def _type(found: object) -> str:
    """A type as the source has it."""
    name = found.__name__ if isinstance(found, type) and not get_args(found) else str(found)
    return f"`{name.replace('otel_goodput.reports.fields.', '').replace('NoneType', 'None')}`"


Tables = dict[str, Callable[[], str]]
FILES: dict[str, Tables] = {
    "docs/reference/phases.md": {"phases": phases, "badput": badput},
    "docs/reference/metrics.md": {"metrics": metrics},
    "docs/reference/attributes.md": {"attributes": attributes},
    "docs/reference/configuration.md": {"environment": environment, "arguments": arguments},
    "docs/exporters.md": {"exporters": exporters},
    "docs/runs.md": {"fields": report_fields},
    "docs/collector/faults.md": {"beside": beside, "elsewhere": elsewhere, "codes": codes},
}


def renewed(name: str, text: str) -> str:
    """`text`, of the file `name`, with its tables as they are to be.

    Raises:
        ValueError: the markers of a table are missing or there more than once.
    """
    for marker, make in FILES[name].items():
        begin, end = f"<!-- begin: {marker} -->\n", f"<!-- end: {marker} -->\n"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{name} needs the markers of {marker!r} once each")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{make()}{end}{rest.partition(end)[2]}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a table is out of date")
    check, stale = parser.parse_args().check, []
    for name in FILES:
        old = (ROOT / name).read_text(encoding="utf-8")
        new = renewed(name, old)
        if old != new:
            stale.append(name)
            if not check:
                (ROOT / name).write_text(new, encoding="utf-8")
    if check and stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run python docs/tables.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
