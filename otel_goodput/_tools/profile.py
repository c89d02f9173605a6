"""``otel-goodput profile``: profiles the next steps of a living job, and prints the functions that take the time."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from otel_goodput._incidents.profiler import MOST_SECONDS, MOST_STEPS, NO_STEP_S, REQUEST, SECONDS, STEPS
from otel_goodput._journal import requests
from otel_goodput._journal.profiles import JAX, SAMPLER, TORCH, read_profile
from otel_goodput._journal.requests import DONE, REFUSED, Answer, Request
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._text.redact import shown
from otel_goodput._tools.arguments import above_zero, add_directory, add_json, add_run, number, place
from otel_goodput._tools.waiting import StatusLine
from otel_goodput.errors import ConfigurationError, JournalError
from otel_goodput.reports import profiles

SLACK_S: Final = 60.0  # for a process to look, to write a trace and to answer
EVERY_S: Final = 0.2
_FILE: Final = re.compile(r"a\d{4,10}-p\d{4,9}-(\d{6,12})\.profile")


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser, "folder of a run, or folder or URL of all runs")
    add_run(parser)
    words = "the rank to profile; may be repeated (default: the lowest that is alive)"
    parser.add_argument("--rank", type=number, action="append", default=[], metavar="R", help=words)
    words = f"how many steps (default: {STEPS}; of short ones more, for enough samples)"
    parser.add_argument("--steps", type=number, default=STEPS, metavar="K", help=words)
    words = f"for at most so many seconds (default: {SECONDS:g}), or until the first step ends"
    limit = above_zero("number of seconds", MOST_SECONDS)
    parser.add_argument("--seconds", type=limit, default=SECONDS, metavar="S", help=words)
    words = "also take a trace by jax's or PyTorch's profiler (default: by that of the library in use), or none"
    parser.add_argument("--with", dest="kind", choices=(JAX, TORCH, SAMPLER), default="", help=words)
    words = "wait at most so many seconds for the profile (default: as long as it takes; 0: do not wait)"
    parser.add_argument("--wait", type=float, default=None, metavar="S", help=words)
    add_json(parser)


def run_profile(options: argparse.Namespace) -> int:
    """Request profiles, wait for them and print them; returns the exit status."""
    if not 0 < options.steps <= MOST_STEPS:
        raise ConfigurationError(f"--steps must be from 1 to {MOST_STEPS}")
    run, attempt, alive = chosen(place(options), options.run_id)
    ranks = sorted(set(options.rank)) or alive[:1]
    if missing := [rank for rank in ranks if rank not in alive]:
        raise JournalError(f"rank {missing[0]} of run {shown(run.called())} is not alive")
    about = {"steps": options.steps, "seconds": options.seconds, "with": options.kind}
    request = requests.make(REQUEST, attempt, ranks, **about)
    requests.post(run, request)
    longest = max(options.seconds, NO_STEP_S) + SLACK_S if options.wait is None else options.wait
    if not longest:
        print(f"requested of rank {', '.join(map(str, ranks))}; the profile will be in {shown(str(run.journal))}")
        return 0
    answers = awaited(run, request, ranks, longest, "profiling")
    return _show(run, attempt, ranks, answers, as_json=options.json)


def _show(
    run: RunDirectory, attempt: int, ranks: Sequence[int], answers: Mapping[int, Answer], *, as_json: bool
) -> int:
    taken, failed = [], []
    for rank in ranks:
        answer = answers.get(rank)
        match = None if answer is None else _FILE.fullmatch(answer.file)
        if answer is None or answer.state != DONE or match is None:
            failed.append(f"rank {rank}: {_why(answer)}")
            continue
        try:
            taken.append((rank, read_profile(run, attempt, rank, int(match[1]))))
        except (OSError, ValueError) as error:
            failed.append(f"rank {rank}: the profile cannot be read: {shown(str(error))}")
    if as_json:
        print(json.dumps({"profiles": [profiles.to_json(rank, attempt + 1, one) for rank, one in taken]}))
    for rank, profile in () if as_json else taken:
        print(f"Rank {rank}. {shown(profile.note)}")
        if grew := profiles.growth(profile):
            print(grew)
        print("\n".join(("", *profiles.table(profile), "")))
        if profile.trace:
            print(f"Trace by {profile.kind}: {shown(str(run.path / profile.trace))}\n")
    for text in failed:
        print(f"otel-goodput: {text}", file=sys.stderr)
    return 1 if failed else 0


def _why(answer: Answer | None) -> str:
    if answer is None:
        return "no answer: the process may hang, or be on a machine that does not see this folder"
    return shown(answer.text) if answer.state == REFUSED else "the profile is not ready yet"


def chosen(where: str, run_id: str | None) -> tuple[RunDirectory, int, list[int]]:
    """Return the living run in a folder or at a URL, its attempt (from 0), and which processes of it are alive.

    Raises JournalError if none is alive, or several are and none is named.
    """
    runs = requests.local_runs(where)
    if run_id is not None:
        runs = [run for run in runs if run.called() == run_id]
        if not runs:
            raise JournalError(f"there is no run {shown(run_id)} in {shown(where)}")
    living, dead = [], JournalError(f"no run in {shown(where)} is running")
    for run in runs:
        try:
            living.append((run, *requests.living(run)))
        except JournalError as error:
            dead = error if len(runs) == 1 else dead
    if not living:
        raise dead
    if len(living) > 1:
        raise JournalError(f"several runs are alive; choose one with --run: {_ids([run for run, *_ in living])}")
    return living[0]


def _ids(runs: Sequence[RunDirectory]) -> str:
    return ", ".join(shown(run.called()) for run in runs)


def awaited(
    run: RunDirectory,
    request: Request,
    ranks: Sequence[int],
    seconds: float,
    doing: str,
    pause: Callable[[float], Any] = time.sleep,
) -> dict[int, Answer]:
    """Wait until all of the `ranks` have carried a request out, or refused it, for `seconds` at most.

    Returns their answers so far. A line of the terminal says what one is `doing`.
    """
    until = time.monotonic() + seconds
    with StatusLine(delay_s=0.5) as line:
        while True:
            answers = requests.answers(run, request)
            over = [rank for rank in ranks if rank in answers and answers[rank].state in (DONE, REFUSED)]
            if len(over) == len(ranks) or time.monotonic() >= until:
                return answers
            if line.due():
                line.show(f"{doing}: {len(over)} of {len(ranks)} ranks, {until - time.monotonic():.0f} s at most")
            pause(EVERY_S)
            requests.post(run, request)  # unless another command has replaced the file meanwhile
