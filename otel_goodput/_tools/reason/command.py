"""``otel-goodput reason``: records why an attempt followed another, by hand or from a log, and lists the reasons."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.disruption import Disruption
from otel_goodput._journal import notes
from otel_goodput._journal.notes import Statement
from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_moment, plural
from otel_goodput._text.redact import shown, without_credentials
from otel_goodput._tools.arguments import add_directory, add_json, add_run, length, named_runs, number, only
from otel_goodput._tools.reason.logs import LONGEST, Entries, Match, best, matches, outages, read
from otel_goodput.errors import ConfigurationError, GoodputError, JournalError
from otel_goodput.reports.report import restarts
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import REASONS, Reason

MARGIN_S: Final = 60  # twice the 30 s that a Spot VM and, by default, a pod get; and clocks differ
_REASONS: Final = ", ".join(notes.SAYABLE)


def add_reason_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Record later why a run was disrupted. Without ATTEMPT, list the disruptions with the reasons recorded "
        "for them. A recorded reason is stored next to the journal and applies whenever the journal is read; a live "
        "job's metrics keep the original reason. The latest record wins, but one by a person wins over an imported one."
    )
    add_directory(parser, "folder of a run, or folder or URL of all runs", metavar="PLACE")
    words = "number of the attempt that began after the disruption, as in reports"
    parser.add_argument("attempt", nargs="?", type=number, metavar="ATTEMPT", help=words)
    parser.add_argument("reason", nargs="?", type=_reason, metavar="REASON", help=f"one of {_REASONS}")
    add_run(parser)
    parser.add_argument("--note", metavar="TEXT", help="a note for readers of the report")
    parser.add_argument("--by", metavar="NAME", help="name to record as the source (default: USER@HOST)")
    imported = parser.add_argument_group("from a log")
    words = (
        "what `gcloud logging read --format=json` (audit log entries) or `kubectl get events -A -o json` printed; "
        "- for standard input. Without --run, it is imported into every run at PLACE"
    )
    imported.add_argument("--import", dest="log", metavar="FILE", help=words)
    words = (
        f"how long before the last sign of life an entry still matches: the time a job has after a notice "
        f"(default: {MARGIN_S}s)"
    )
    imported.add_argument("--margin", type=length, metavar="T", help=words)
    words = "only entries that name what the attempt ran on, not those that match by time only"
    imported.add_argument("--named", action="store_true", help=words)
    imported.add_argument("--dry-run", action="store_true", help="print what would be recorded, but record nothing")
    add_json(parser, "print the list as JSON")


def _reason(text: str) -> str:
    if text == Reason.ROLLBACK:
        raise argparse.ArgumentTypeError(
            f"a rollback is what steps within a process do, not why an attempt began; expected one of {_REASONS}"
        )
    if text not in REASONS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a reason; expected one of {_REASONS}")
    return text


class Disrupted(NamedTuple):
    """A run, how many attempts it has, and the disruption with which each began, by its number, counted from 1."""

    run_id: str
    attempts: int
    losses: Mapping[int, Disruption]

    def reason_of(self, attempt: int) -> str:
        """Return the reason in the journal for the disruption that `attempt` began with. Raises JournalError."""
        if attempt in self.losses:
            return self.losses[attempt].reason
        why = f"attempt {attempt} of run {self.run_id!r} did not begin after a disruption"
        known = f"run {self.run_id!r} has {plural(self.attempts, 'attempt')}"
        if not 1 <= attempt <= self.attempts:
            why = f"{known}, and no attempt {attempt}: give the number of the attempt that began after the disruption"
        elif attempt == 1:
            why = (
                f"attempt 1 of run {self.run_id!r} began the run, so no disruption came before it: to say what "
                "ended attempt 1, give attempt 2"
            )
        elif self.losses and attempt < min(self.losses):
            why = f"{known}; only the latest {len(self.losses)} disruptions are remembered one by one"
        raise JournalError(why)


def disrupted(run: RecordedRun) -> Disrupted:
    """Read the disruptions of a run from its leader's journal. Raises JournalError if there is none to read."""
    run_id = run.run_id
    restored = run.restored()
    if restored.attempt < 0:
        note = restored.damages.note()
        raise JournalError(f"run {run_id!r}: process 0 left no journal" if note is None else note.text)
    overview = restored.ledger.overview(restored.last_sign)
    return Disrupted(run_id, restored.attempt + 1, restarts(overview.disruptions))


_BY_NAME: Final = 500  # added to the strength of a match by name, so that it wins over any match by time
_TRIES: Final = 5


def run_reason(options: argparse.Namespace) -> int:
    """Record, import or list reasons, and return 0."""
    _check(options)
    log = None if options.log is None else _read(options.log)
    with named_runs(options) as runs:
        if log is not None:
            _import(runs, log, options)
        elif options.attempt is None:
            _list(runs, as_json=options.json)
        else:
            _record(only(runs), options)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse arguments that do not go together. Raises ConfigurationError."""
    by_hand, importing = options.attempt is not None, options.log is not None
    if by_hand and options.reason is None:
        raise ConfigurationError("REASON is missing: otel-goodput reason PLACE ATTEMPT REASON")
    if by_hand and importing:
        raise ConfigurationError("--import finds attempts and reasons in the log: leave out ATTEMPT and REASON")
    for name, given, fits, partner in (
        ("--note", options.note is not None, by_hand, "ATTEMPT and REASON"),
        ("--by", options.by is not None, by_hand, "ATTEMPT and REASON"),
        ("--margin", options.margin is not None, importing, "--import"),
        ("--named", options.named, importing, "--import"),
        ("--dry-run", options.dry_run, importing, "--import"),
        ("--json", options.json, not by_hand and not importing, "the list: leave out ATTEMPT, REASON and --import"),
    ):
        if given and not fits:
            raise ConfigurationError(f"{name} works only with {partner}")


def _record(run: RecordedRun, options: argparse.Namespace) -> None:
    known = disrupted(run)
    original = known.reason_of(options.attempt)
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    statement = notes.statement(
        options.attempt,
        options.reason,
        original,
        options.by or f"{user}@{socket.gethostname()}",
        person=True,
        recorded_at=time.time(),
        note=options.note or "",
    )
    _save(run, [statement])
    print(
        f"run {known.run_id!r}: attempt {statement.attempt}: {statement.reason}, recorded by {statement.author}; "
        f"originally {original}"
    )


def _list(runs: Sequence[RecordedRun], *, as_json: bool) -> None:
    listed = []
    for run in runs:
        recorded = notes.read_reasons(run.folder)
        known = disrupted(run)
        counting = set(notes.in_force(recorded.statements).values())
        rows = [{**each.to_json(), "in_force": each in counting} for each in recorded.statements]
        losses = [{"attempt": attempt, "reason": loss.reason} for attempt, loss in sorted(known.losses.items())]
        listed.append({"run_id": known.run_id, "disruptions": losses, "statements": rows})
        if recorded.note is not None:
            print(f"otel-goodput: {shown(recorded.note.text)}", file=sys.stderr)
        if not as_json:
            _print_list(known, rows)
    if as_json:
        print(json.dumps({"runs": listed}))


def _print_list(known: Disrupted, rows: Sequence[dict[str, Any]]) -> None:
    print(shown(f"run {known.run_id!r}: {plural(known.attempts, 'attempt')}"))
    for attempt, loss in sorted(known.losses.items()):
        mine = [row for row in rows if row["attempt"] == attempt]
        print(f"  attempt {attempt}: {loss.reason}" + ("" if mine else "; no reason was recorded afterwards"))
        for row in reversed(mine):
            note = f", “{row['note']}”" if row["note"] else ""
            when, counts = format_moment(row["said_at"]), "" if row["in_force"] else " (replaced)"
            print(shown(f"    {row['reason']}, recorded by {row['said_by']} on {when}{note}{counts}"))
    unknown = [row for row in rows if row["attempt"] not in known.losses]
    if unknown:
        print(f"  ignored: {plural(len(unknown), 'reason')} for attempts that no known disruption began")


def _read(name: str) -> Entries:
    if name == "-":
        data = sys.stdin.buffer.read(LONGEST + 1)
    else:
        with files.open_given(Path(name)) as file:
            data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise GoodputError(f"{shown(name)} holds more than {LONGEST // files.MIB} MiB: export a shorter time range")
    return read(data, "standard input" if name == "-" else shown(name))


def _import(runs: Sequence[RecordedRun], log: Entries, options: argparse.Namespace) -> None:
    margin = MARGIN_S * NS if options.margin is None else int(options.margin)
    conclusive = [entry for entry in log.entries if entry.evidence.reason is not None]
    matched: set[int] = set()
    for run in runs:
        try:
            known = disrupted(run)
        except (JournalError, OSError, ValueError) as error:
            if len(runs) == 1:
                raise
            print(f"otel-goodput: run {shown(repr(run.run_id))}: {shown(str(error))}", file=sys.stderr)
            continue
        among = outages(run.listed(), [known.losses[at] for at in sorted(known.losses)])
        explained = [one for one in matches(conclusive, among, margin) if one.by_name or not options.named]
        matched |= {id(match.entry) for match in explained}
        _import_into(run, known, best(explained), dry_run=options.dry_run)
    silent, missed = len(log.entries) - len(conclusive), len(conclusive) - len(matched)
    parts = [f"{len(matched)} matched", f"{missed} matched no disruption", f"{silent} that give no reason"]
    if log.left_out:
        parts.append(f"{log.left_out} unreadable or from another log")
    count = len(log.entries) + log.left_out
    print(f"{log.kind}: {count} {'entry' if count == 1 else 'entries'}, {', '.join(parts)}")


def _import_into(run: RecordedRun, known: Disrupted, chosen: dict[int, Match], *, dry_run: bool) -> None:
    statements = notes.read_reasons(run.folder).statements
    imported = notes.in_force(one for one in statements if not one.person)
    counting = notes.in_force(statements)
    new: list[Statement] = []
    for attempt, match in sorted(chosen.items()):
        evidence = match.entry.evidence
        assert evidence.reason is not None
        how = "matched by name" if match.by_name else "matched by time only"
        one = notes.statement(
            attempt,
            evidence.reason,
            known.losses[attempt].reason,
            match.entry.by,
            person=False,
            recorded_at=time.time(),
            note=f"at {format_moment(match.at / NS)}, {how}",
            strength=evidence.strength + _BY_NAME * match.by_name,
        )
        earlier = imported.get(attempt)
        about = f"{one.author}, {one.note}; originally {one.first_reason}"
        line = f"run {known.run_id!r}: attempt {attempt}: {one.reason} ({about})"
        if earlier is not None and earlier.strength >= one.strength:
            line += f": nothing new, {earlier.author} already recorded {earlier.reason}"
        else:
            new.append(one)
            held = counting.get(attempt)
            if dry_run:
                line += ": would be recorded"
            if held is not None and held.person:
                line += f": {held.reason} still applies, because {held.author} recorded it by hand"
        print(shown(line))
    if new and not dry_run:
        _save(run, new)


def _save(recorded: RecordedRun, statements: Sequence[Statement]) -> None:
    """Add statements to the file of a run, at its URL if it has one. Raises JournalError, OSError.

    An object store replaces whole objects, so a command that writes at the same moment may overwrite ours, or we its:
    the object is read again, and ours are added once more if they are not in it.
    """
    run, mirror = recorded.folder, recorded.mirror
    if mirror is None:
        notes.append_reasons(run, statements)
        return
    try:
        for _ in range(_TRIES):
            mirror.renew(run.reasons_path)
            there = set(notes.read_reasons(run).statements)
            missing = [one for one in statements if one not in there]
            if not missing:
                return
            notes.append_reasons(run, missing)
            mirror.put(run.reasons_path)
    except JournalError:
        raise
    except Exception as error:  # each fsspec filesystem raises its own errors
        why = without_credentials(str(error) or type(error).__name__)
        raise JournalError(f"the reason cannot be saved at {mirror.shown}: {why}") from error
    raise JournalError(f"the reason cannot be saved at {mirror.shown}: other writers keep changing it; try again")
