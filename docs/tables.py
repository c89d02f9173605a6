"""The README's tables, made of the package's own: ``python docs/tables.py`` rewrites them, ``--check`` compares.

A table stands between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from otel_goodput.accounting import rules
from otel_goodput.envvars import ENVVARS, STANDARD, EnvVar
from otel_goodput.phases import Phases
from otel_goodput.reports.advice import EXPLAINED
from otel_goodput.semconv import CATEGORIES, METRICS, PHASES, SPAN_ATTRIBUTES, Category, Phase

README = Path(__file__).parents[1] / "README.md"


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
        ("category", "time that went by …", "what usually helps"),
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
        return f"`{one.name}`", one.type, f"`{one.default}`" if one.default else "", one.brief

    return table(("variable", "type", "default", ""), map(row, (*ENVVARS, *STANDARD)))


TABLES: dict[str, Callable[[], str]] = {
    "phases": phases,
    "badput": badput,
    "metrics": metrics,
    "attributes": attributes,
    "environment": environment,
}


def renewed(text: str) -> str:
    """`text` with its tables as they are to be.

    Raises:
        ValueError: the markers of a table are missing or there more than once.
    """
    for name, make in TABLES.items():
        begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->\n"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{README.name} needs the markers of {name!r} once each")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{make()}{end}{rest.partition(end)[2]}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a table is out of date")
    check = parser.parse_args().check
    old = README.read_text(encoding="utf-8")
    new = renewed(old)
    if old == new:
        return 0
    if check:
        sys.stderr.write("README.md is not what the package says; run python docs/tables.py\n")
        return 1
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
