"""All commands in one table: purpose, where the code is, examples, and exit statuses; and the help made of it."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

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
_ALWAYS: Final = (0, 1, USAGE, 130)  # statuses that can end any command
_WIDTH: Final = 100


class Command(NamedTuple):
    """A subcommand NAME.

    Its module, imported when the command is called, has the functions ``add_NAME_arguments(parser)`` and
    ``run_NAME(options)``, which returns the exit status; GoodputError and OSError that it raises are shown to the user.
    """

    module: str  # in this package
    purpose: str  # for the list of commands, and for its own help if it has no `description`
    examples: tuple[str, ...]  # command lines, without ``otel-goodput``
    statuses: tuple[int, ...] = ()  # besides those of every command
    description: str | None = None  # for its own help

    def add_to(self, parsers: Any, name: str, *, whole: bool) -> None:
        """Add the command to the subcommands `parsers`; with its arguments, which need its module, only if `whole`."""
        parser = parsers.add_parser(name, help=self.purpose, description=self.description)
        if not whole:
            return
        module = import_module(f"{__package__}.{self.module}")
        getattr(module, f"add_{name}_arguments")(parser)
        parser.set_defaults(run=getattr(module, f"run_{name}"))
        parser.description = parser.description or f"{self.purpose[:1].upper()}{self.purpose[1:]}."
        epilog = parser.epilog or ""
        if parser.formatter_class is not argparse.RawDescriptionHelpFormatter:
            parser.description, epilog = (textwrap.fill(text, _WIDTH) for text in (parser.description, epilog))
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        lines = (each if "otel-goodput" in each else f"otel-goodput {each}" for each in self.examples)
        examples = "".join(f"\n  {line}" for line in lines)
        parts = (epilog, f"examples:{examples}", status_table((*_ALWAYS, *self.statuses)))
        parser.epilog = "\n\n".join(filter(None, parts))


def status_table(statuses: tuple[int, ...] = tuple(EXIT_STATUSES)) -> str:
    """Return the table of these exit statuses, for a terminal."""
    return "exit status:" + "".join(f"\n  {each:<4}{EXIT_STATUSES[each]}" for each in sorted(statuses))


# In the order of the help.
COMMANDS: Final[Mapping[str, Command]] = {
    "run": Command(
        "run",
        "run a training program and record it, without a line in it",
        ("run train.py --lr 0.1", "run --name llama3-8b -m my_package.train", "torchrun -m otel_goodput run train.py"),
        description="Run a Python program and record it: trainers, loaders, optimizers, checkpoints and compilations "
        "of the libraries that it uses. It needs the extra 'run'.",
    ),
    "report": Command(
        "report",
        "print the report of a run",
        ("report", "report runs/ --run job-17 --json", "report --window 0s 1h"),
        (DAMAGED,),
    ),
    "runs": Command("report", "list runs, the newest first", ("runs", "runs gs://bucket/runs --json"), (DAMAGED,)),
    "compare": Command(
        "compare",
        "compare two runs; in CI, fail if a figure got worse",
        ("compare job-1 job-2", "compare job-1 job-2 --html comparison.html"),
        (DAMAGED, UNKNOWN, HOLDS),
    ),
    "export": Command(
        "export",
        "write a run as a trace for Perfetto",
        ("export --perfetto trace.json", "export runs/job-17 --perfetto trace.json.gz"),
        (DAMAGED,),
    ),
    "stacks": Command(
        "stacks",
        "print where each rank of a job stands still, by the stacks of its threads",
        ("stacks", "stacks runs/job-17 --now", "stacks gs://bucket/runs --run job-17 --json"),
        (DAMAGED,),
    ),
    "collector": Command(
        "collector.command",
        "write an OpenTelemetry Collector configuration, systemd unit or Kubernetes manifest",
        ("collector config local", "collector k8s job --project my-project"),
        description="Write the OpenTelemetry Collector's configuration, a script that installs it as a systemd unit, "
        "or a Kubernetes manifest, in one file.",
    ),
    "dashboards": Command(
        "dashboards",
        "write dashboards and alerts for Grafana or Cloud Monitoring",
        ("dashboards grafana grafana/", "dashboards gcp views/ --goodput-target 0.9"),
    ),
    "reason": Command(
        "reason.command",
        "record why a run was disrupted, by hand or from a log",
        ("reason runs/job-17", "reason runs/job-17 2 preemption"),
    ),
    "profile": Command(
        "profile",
        "profile the next steps of a living job, and name the functions that take the time",
        ("profile runs/job-17", "profile --rank 3 --with sampler --steps 20"),
    ),
    "replay": Command(
        "report",
        "print the report of a timeline: a JSON-lines file, or a run's journal",
        ("replay timeline.jsonl", "replay - --json"),
        (DAMAGED,),
    ),
    "recover": Command(
        "recover",
        "export the spans and last metrics that a killed attempt did not export, without a restart",
        ("recover", "recover runs/job-17 --exporters otlp"),
        (DAMAGED,),
    ),
    "send": Command(
        "send.command",
        "send the files of the exporter 'file' to an OTLP receiver",
        ("send goodput/job-17 --dry-run", "send goodput/job-17 --endpoint http://localhost:4317"),
        description="Send over OTLP what the exporter 'file' wrote. A second call resumes where the first stopped, per "
        "endpoint. A request whose response was lost is sent again and may arrive twice.",
    ),
    "serve": Command(
        "serve",
        "serve a live page of all runs for a browser",
        ("serve", "serve gs://bucket/runs"),
        description="Show every run of a folder or URL live in a browser: an index, a page for each run, and two runs "
        "side by side. The command never writes. It needs the extra 'serve'.",
    ),
    "mcp": Command(
        "mcp",
        "answer an assistant's questions about runs (Model Context Protocol, on stdin and stdout)",
        ("mcp runs/", "mcp gs://bucket/runs"),
        description="Answer questions of an assistant, such as an IDE's, about the runs of a folder or URL, by the "
        "Model Context Protocol on standard input and output. The command only reads. It needs the extra 'mcp'.",
    ),
    "plan": Command(
        "plan",
        "compute how often to save checkpoints, and the goodput to expect",
        ("plan", "plan --mtbf 6h --save 30s"),
        (DAMAGED,),
    ),
    "env": Command(
        "doctor.settings", "print the environment variables and the values in effect", ("env", "env --json")
    ),
    "doctor": Command(
        "doctor.examination",
        "check the configuration: what goes where, and what does not work",
        ("doctor", "doctor --gcp", "doctor --json"),
    ),
    "completion": Command(
        "cli",
        "print a script that completes otel-goodput's arguments in a shell",
        ('eval "$(otel-goodput completion bash)"', "completion fish"),
    ),
    "help": Command("cli", "print the help of a command", ("help", "help report")),
}
