"""Tables in the documentation, made of the package and its tests.

``python docs/tables.py`` rewrites them, ``--check`` compares.

A table stands between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->``, under the heading that ``FILES`` gives it.
Nothing is written if a table is missing or stands under another heading, or if a heading stands over nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args, get_type_hints, is_typeddict

import reference_commands
import reference_functions

from otel_goodput._accounting import rules
from otel_goodput._recording.phases import Phases
from otel_goodput._settings.envvars import STANDARD, EnvVar
from otel_goodput._settings.options import ENVVARS, OF_VARIABLE, OPTIONS, Argument, Option
from otel_goodput.exporters import registry
from otel_goodput.exporters.spec import METRICS as METRIC_SIGNAL
from otel_goodput.exporters.spec import TRACES
from otel_goodput.reports import fields
from otel_goodput.reports.fields import ReportFields
from otel_goodput.reports.text import EXPLAINED
from otel_goodput.semconv import CATEGORIES, METRICS, PHASES, RESOURCE_ATTRIBUTES, SPAN_ATTRIBUTES, Category, Phase

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
    Phase.STEP: "`productive`, `wasted_progress`, `stalled` or `in_flight`",
    Phase.ELASTIC_WAIT: "`elastic_slice_down` or `elastic_scale_up`",
    Phase.EXCLUSION: "nothing",
    Phase.PART: "nothing: the time stays the step's",
}
# What they are that nobody opens.
UNOPENED = {
    Phase.COMPILE: "A compilation: jax's compilations are recorded automatically",
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


def resource() -> str:
    return table(
        ("attribute", "type", "when", ""),
        ((f"`{one.key}`", one.type, one.on, one.brief) for one in RESOURCE_ATTRIBUTES),
    )


def environment() -> str:
    def row(one: EnvVar) -> Sequence[str]:
        argument = OF_VARIABLE.get(one.name, "")
        default = f"`{one.default}`" if one.default else ""
        return f"`{one.name}`", f"`{argument}`" if argument else "", one.type, default, one.brief

    return table(("variable", "argument", "type", "default", ""), map(row, (*ENVVARS, *STANDARD)))


def arguments() -> str:
    """Those that have no variable."""
    rows = ((f"`{name}`", one.brief) for name, one in OPTIONS.items() if not isinstance(one, Option))
    return table(("argument", ""), rows)


def exporters() -> str:
    def row(name: str) -> Sequence[str]:
        one = registry.spec(name)
        takes = ("yes" if signal in one.signals else "" for signal in (TRACES, METRIC_SIGNAL))
        return f"`{name}`", *takes, one.brief + (f"; extra `{one.extra}`" if one.extra else "")

    return table(("exporter", "spans", "metrics", ""), map(row, registry.OURS))


def outcomes() -> ModuleType:
    """The outcomes that the tests of the collector check."""
    spec = importlib.util.spec_from_file_location("outcomes", ROOT / "tests/otelcol/outcomes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def one_job() -> str:
    rows = ((name + each.more, each.otlp, each.classic) for name, each in outcomes().AT_SIDECAR.items())
    return table(("fault", "`gcp-sidecar`", "`gcp-sidecar-classic`"), rows)


def elsewhere() -> str:
    rows = ((each.fault + (" (by hand)" if not each.shown else ""), each.outcome) for each in outcomes().ELSEWHERE)
    return table(("fault", "outcome"), rows)


def codes() -> str:
    known = outcomes()
    retried, refused = (", ".join(f"`{code}`" for code in group) for group in (known.RETRIED, known.REFUSED))
    rows = (f"{retried}; {known.THROTTLED}", known.THEN_RETRIED), (refused, known.THEN_REFUSED)
    return table(("code", "then"), rows)


def report_fields() -> str:
    """Every type of a report's JSON, with its fields as the comments in their module explain them."""
    types = [ReportFields, *(one for one in vars(fields).values() if is_typeddict(one) and one is not ReportFields)]
    explained = _explained()
    return "\n".join(_fields(one, explained[one.__name__]) for one in types if not one.__name__.startswith("_"))


def _fields(one: type, explained: list[tuple[list[str], str]]) -> str:
    types = get_type_hints(one)
    rows = (
        (", ".join(f"`{name}`" for name in names), ", ".join(dict.fromkeys(_type(types[name]) for name in names)), what)
        for names, what in explained
    )
    text = " ".join((one.__doc__ or "").split())
    return f"### {one.__name__}\n\n{text}\n\n" + table(("field", "type", ""), rows)


def _explained() -> dict[str, list[tuple[list[str], str]]]:
    """By type, the names of fields and the comment that they share, behind the first of them or above it."""
    explained: dict[str, list[tuple[list[str], str]]] = {}
    rows: list[tuple[list[str], str]] = []
    above: list[str] = []
    for line in inspect.getsource(fields).replace("``", "`").splitlines():
        if begins := re.match(r"(?:class )?(\w+)(?:\((\w+)| = TypedDict\()", line):
            rows = explained[begins[1]] = [*explained.get(begins[2] or "", ())]
        elif comment := re.match(r" {4,8}# (.*)", line):
            above.append(comment[1])
        elif field := re.match(r' {4,8}"?(\w+)"?: .*?(?:  # (.*))?$', line):
            if what := field[2] or " ".join(above):
                rows.append(([field[1]], what))
            else:
                rows[-1][0].append(field[1])
            above = []
    return explained


def _type(annotation: object) -> str:
    """A type in words: in code within a table, not every renderer shows the `|` of a union."""
    name = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    return f"`{name.replace('otel_goodput.reports.fields.', '').replace('NoneType', 'None').replace(' | ', ' or ')}`"


def option_types() -> str:
    """The types of keyword arguments that type checkers need, as source."""

    def typed(name: str, about: str, rows: Iterable[Argument[Any]]) -> str:
        fields = "".join(f"    {row.name}: {row.takes}\n" for row in rows)
        return f'class {name}(TypedDict, total=False):\n    """{about}"""\n\n{fields}\n\n'

    chosen = [row for row in OPTIONS.values() if row.processor]
    return typed("Options", "Keyword arguments of ``configure()`` and ``Recorder``.", OPTIONS.values()) + typed(
        "ProcessorOptions", "Those of ``GoodputSpanProcessor``.", chosen
    )


class Table(NamedTuple):
    """A generated block, and the heading above it."""

    heading: str
    make: Callable[[], str]


FILES: dict[str, dict[str, Table]] = {
    "otel_goodput/_settings/options.py": {"options": Table("", option_types)},
    "docs/testing.md": {"testing": Table("Reference", reference_functions.of_tests)},
    "docs/reference/functions.md": {
        "recording": Table("Recording", lambda: reference_functions.group(reference_functions.RECORDING)),
        "phase-functions": Table("Phases", lambda: reference_functions.group(reference_functions.PHASES)),
        "figures": Table("Figures", lambda: reference_functions.group(reference_functions.FIGURES)),
        "given": Table("Objects that phases and functions return", reference_functions.given),
        "classes": Table("Classes", reference_functions.classes),
        "errors": Table("Errors", reference_functions.of_errors),
    },
    "docs/reference/command-line.md": {
        "statuses": Table("Exit statuses", reference_commands.statuses),
        "commands": Table("Commands", reference_commands.command_line),
    },
    "docs/reference/phases.md": {"phases": Table("Phases", phases), "badput": Table("Badput categories", badput)},
    "docs/reference/metrics.md": {"metrics": Table("All metrics", metrics)},
    "docs/reference/attributes.md": {
        "attributes": Table("Spans", attributes),
        "resource": Table("Resource", resource),
    },
    "docs/reference/configuration.md": {
        "environment": Table("Environment variables", environment),
        "arguments": Table("Arguments without a variable", arguments),
    },
    "docs/exporters.md": {"exporters": Table("What goes where", exporters)},
    "docs/runs.md": {"fields": Table("The fields of a report", report_fields)},
    "docs/collector/faults.md": {
        "one job": Table("One job", one_job),
        "elsewhere": Table("Other faults", elsewhere),
        "codes": Table("What each response code does", codes),
    },
}


def renewed(name: str, text: str) -> str:
    """Return `text`, of the file `name`, with its tables made anew.

    Raises:
        ValueError: the markers of a table are missing or repeated, a table is under the wrong heading, a marked table
            does not belong to this page, or nothing is under a heading.
    """
    tables = FILES[name]
    source = name.endswith(".py")
    left, right = ("# ", "") if source else ("<!-- ", " -->")
    if strangers := set(re.findall(rf"^{left}begin: (.*){right}$", text, re.MULTILINE)) - tables.keys():
        raise ValueError(f"{name} has markers of tables that nothing makes: {', '.join(sorted(strangers))}")
    for marker, (heading, make) in tables.items():
        begin, end = f"{left}begin: {marker}{right}\n", f"{left}end: {marker}{right}\n"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{name} needs the markers of {marker!r} once each")
        before, _, rest = text.partition(begin)
        if not source and (not (above := headings(before)) or above[-1] != heading):
            raise ValueError(f"{name}: {marker!r} belongs under {heading!r}, not under {above[-1:] or 'no heading'}")
        text = f"{before}{begin}{make()}{end}{rest.partition(end)[2]}"
    if not source and (over := empty(text)):
        raise ValueError(f"{name}: nothing stands under {over[0]!r}")
    return text


def prose(text: str) -> str:
    """Return `text` without markers and without the contents of code blocks, where a # is not a heading."""
    text = re.sub(r"^```.*?^```$", "code", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^<!--.*?-->\n", "", text, flags=re.MULTILINE)


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)


def empty(text: str) -> list[str]:
    """The headings with nothing under them: neither text nor headings of a lower rank."""
    titles = re.findall(r"^(#+) (.*)\n+(?=(#+) |\Z)", prose(text), re.MULTILINE)
    return [title for rank, title, following in titles if len(following) <= len(rank)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a table is out of date")
    check = parser.parse_args().check
    old = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES}
    try:
        new = {name: renewed(name, text) for name, text in old.items()}
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    stale = [name for name in FILES if old[name] != new[name]]
    if check and stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run python docs/tables.py\n")
        return 1
    for name in stale:
        (ROOT / name).write_text(new[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
