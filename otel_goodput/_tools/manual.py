"""What ``--help`` says of each command below its options: examples, and the exit statuses."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from typing import Final, NamedTuple

USAGE: Final = 2
DAMAGED: Final = 3  # something had to be left out
UNKNOWN: Final = 4  # a figure of a condition is not known
HOLDS: Final = 5  # a condition holds

EXIT_STATUSES: Final[Mapping[int, str]] = {
    0: "success",
    1: "an error, such as a missing run; doctor: a problem was found",
    USAGE: "invalid use of the command",
    DAMAGED: "part of a journal is damaged and could not be read; the rest is shown",
    UNKNOWN: "compare --fail-if: no condition holds, but one uses an unknown figure",
    HOLDS: "compare --fail-if: a condition holds",
    130: "interrupted with Ctrl-C",
}


# Statuses that can end any command; the others end only commands that name them.
_ALWAYS: Final = (0, 1, 2, 130)
_WIDTH: Final = 100


class Manual(NamedTuple):
    """Examples of a command, as its arguments, and the exit statuses that it has besides those of every command."""

    examples: tuple[str, ...]
    statuses: tuple[int, ...] = ()


MANUALS: Final[Mapping[str, Manual]] = {
    "report": Manual(("report", "report runs/ --run job-17 --json", "report --window 0s 1h"), (DAMAGED,)),
    "runs": Manual(("runs", "runs gs://bucket/runs --json"), (DAMAGED,)),
    "compare": Manual(
        ("compare job-1 job-2", "compare job-1 job-2 --html comparison.html"), (DAMAGED, UNKNOWN, HOLDS)
    ),
    "export": Manual(("export --perfetto trace.json", "export runs/job-17 --perfetto trace.json.gz"), (DAMAGED,)),
    "reason": Manual(("reason runs/job-17", "reason runs/job-17 2 preemption"),),
    "collector": Manual(("collector config local", "collector k8s job --project my-project")),
    "dashboards": Manual(("dashboards grafana grafana/", "dashboards gcp views/ --goodput-target 0.9")),
    "replay": Manual(("replay timeline.jsonl", "replay - --json"), (DAMAGED,)),
    "recover": Manual(("recover", "recover runs/job-17 --exporters otlp"), (DAMAGED,)),
    "send": Manual(("send goodput/job-17 --dry-run", "send goodput/job-17 --endpoint http://localhost:4317"),),
    "serve": Manual(("serve", "serve gs://bucket/runs"),),
    "plan": Manual(("plan", "plan --mtbf 6h --save 30s"), (DAMAGED,)),
    "env": Manual(("env", "env --json"),),
    "doctor": Manual(("doctor", "doctor --gcp", "doctor --json"),),
    "completion": Manual(('eval "$(otel-goodput completion bash)"', "completion fish"),),
    "help": Manual(("help", "help report"),),
}  # fmt: skip


def describe(name: str, purpose: str, parser: argparse.ArgumentParser) -> None:
    """Complete the help of the command `name`: its purpose, if nothing longer is there, examples, exit statuses."""
    manual = MANUALS.get(name, Manual(()))
    parser.description = parser.description or f"{purpose[:1].upper()}{purpose[1:]}."
    raw = parser.formatter_class is argparse.RawDescriptionHelpFormatter
    told = (text if raw else textwrap.fill(text, _WIDTH) for text in (parser.description, parser.epilog or ""))
    parser.description, epilog = told
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    examples = "".join(f"\n  {each if 'otel-goodput' in each else f'otel-goodput {each}'}" for each in manual.examples)
    parts = [epilog, f"examples:{examples}" if examples else "", statuses((*_ALWAYS, *manual.statuses))]
    parser.epilog = "\n\n".join(filter(None, parts))


def statuses(shown: tuple[int, ...] = tuple(EXIT_STATUSES)) -> str:
    """Return the table of the exit statuses `shown`, for a terminal."""
    return "exit status:" + "".join(f"\n  {each:<4}{EXIT_STATUSES[each]}" for each in sorted(shown))
