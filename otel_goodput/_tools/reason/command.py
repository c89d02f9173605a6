"""``otel-goodput reason``: says why an attempt followed another, lists what was said, and imports it from a log."""

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

from otel_goodput._accounting.overview import Loss
from otel_goodput._journal import reasons
from otel_goodput._journal.reasons import Statement
from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_moment, plural
from otel_goodput._text.redact import shown, without_credentials
from otel_goodput._tools.arguments import found_in
from otel_goodput._tools.reason import arguments, matching
from otel_goodput._tools.reason.logs import MOST, Entries, read
from otel_goodput.errors import ConfigurationError, GoodputError, JournalError
from otel_goodput.reports.corrections import restarts
from otel_goodput.reports.run import RecordedRun


class Disrupted(NamedTuple):
    """A run and its disruptions.

    Attributes:
        run_id: of the run.
        attempts: how many there are.
        losses: the disruption with which each attempt began, by the attempt's number, counted from 1.
    """

    run_id: str
    attempts: int
    losses: Mapping[int, Loss]

    def reason_of(self, attempt: int) -> str:
        """Return the reason in the journal for the disruption that `attempt` began with.

        Raises:
            JournalError: there is no such attempt, or it did not begin with a disruption.
        """
        if attempt in self.losses:
            return self.losses[attempt].reason
        known = f"run {self.run_id!r} has {self.attempts} attempt{'s' if self.attempts != 1 else ''}"
        if not 1 <= attempt <= self.attempts:
            raise JournalError(
                f"{known}, and no attempt {attempt}: give the number of the attempt that began after the disruption"
            )
        if attempt == 1:
            raise JournalError(
                f"attempt 1 of run {self.run_id!r} began the run, so no disruption came before it: to say what "
                "ended attempt 1, give attempt 2"
            )
        if self.losses and attempt < min(self.losses):
            raise JournalError(f"{known}; only the latest {len(self.losses)} disruptions are remembered one by one")
        raise JournalError(f"attempt {attempt} of run {self.run_id!r} did not begin after a disruption")

    def to_json(self) -> list[dict[str, Any]]:
        return [{"attempt": attempt, "reason": loss.reason} for attempt, loss in sorted(self.losses.items())]


def disrupted(run: RecordedRun) -> Disrupted:
    """Read the disruptions of a run from the journal of its leader.

    Raises:
        JournalError: there is none, or none that can be read.
    """
    run_id = run.run_id
    restored = run.restored()
    if restored.attempt < 0:
        note = restored.damages.note()
        raise JournalError(f"run {run_id!r}: process 0 left no journal" if note is None else note.text)
    overview = restored.ledger.overview(restored.last_sign)
    losses = restarts(overview.disruptions)
    return Disrupted(run_id, restored.attempt + 1, losses)


_BY_NAME: Final = 500  # added to the strength of what matched by name, so that it is heard before what did not
_TRIES: Final = 5


def run(options: argparse.Namespace) -> int:
    """Do what the arguments say, and return 0.

    Raises:
        ConfigurationError: they do not go together.
        JournalError: there is no such run or attempt, or what is said cannot be kept.
        GoodputError: the log is none that is known.
        OSError: a file cannot be read or written.
    """
    _check(options)
    log = None if options.log is None else _read(options.log)
    with found_in(options) as found:
        if log is not None:
            _import(found, log, options)
        elif options.attempt is None:
            _list(found, as_json=options.json)
        elif len(found) > 1:
            ids = ", ".join(shown(one.run_id) for one in found)
            raise JournalError(f"there are {len(found)} runs; choose one with --run: {ids}")
        else:
            _say(found[0], options)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse arguments that do not go together. Raises ConfigurationError."""
    if options.attempt is not None and options.reason is None:
        raise ConfigurationError("REASON is missing: otel-goodput reason PLACE ATTEMPT REASON")
    if options.log is not None and options.attempt is not None:
        raise ConfigurationError("--import finds attempts and reasons in the log: leave out ATTEMPT and REASON")
    told = {
        "--note": (options.note is not None, options.attempt is not None, "ATTEMPT and REASON"),
        "--by": (options.by is not None, options.attempt is not None, "ATTEMPT and REASON"),
        "--margin": (options.margin is not None, options.log is not None, "--import"),
        "--named": (options.named, options.log is not None, "--import"),
        "--dry-run": (options.dry_run, options.log is not None, "--import"),
        "--json": (
            options.json,
            options.attempt is None and options.log is None,
            "the list: leave out ATTEMPT, REASON and --import",
        ),
    }
    for name, (given, fits, partner) in told.items():
        if given and not fits:
            raise ConfigurationError(f"{name} works only with {partner}")


# --- by hand ----------------------------------------------------------------------------------------------------------


def _say(found: RecordedRun, options: argparse.Namespace) -> None:
    known = disrupted(found)
    first = known.reason_of(options.attempt)
    said = reasons.statement(
        options.attempt,
        options.reason,
        first,
        options.by or _user(),
        person=True,
        said_at=time.time(),
        note=options.note or "",
    )
    _keep(found, [said])
    print(
        f"run {known.run_id!r}: attempt {said.attempt}: {said.reason}, recorded by {said.said_by}; originally {first}"
    )


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return f"{user}@{socket.gethostname()}"


# --- the list ---------------------------------------------------------------------------------------------------------


def _list(found: Sequence[RecordedRun], *, as_json: bool) -> None:
    told = []
    for one in found:
        said = reasons.read_reasons(one.folder)
        known = disrupted(one)
        counting = set(reasons.in_force(said.statements).values())
        rows = [{**each.to_json(), "in_force": each in counting} for each in said.statements]
        told.append({"run_id": known.run_id, "disruptions": known.to_json(), "statements": rows})
        if said.note is not None:
            print(f"otel-goodput: {shown(said.note.text)}", file=sys.stderr)
        if not as_json:
            _print_list(known, rows)
    if as_json:
        print(json.dumps({"runs": told}))


def _print_list(known: Disrupted, rows: Sequence[dict[str, Any]]) -> None:
    print(shown(f"run {known.run_id!r}: {plural(known.attempts, 'attempt')}"))
    for attempt, loss in sorted(known.losses.items()):
        said = [row for row in rows if row["attempt"] == attempt]
        print(f"  attempt {attempt}: {loss.reason}" + ("" if said else "; no reason was recorded afterwards"))
        for row in reversed(said):
            note = f", “{row['note']}”" if row["note"] else ""
            when, counts = format_moment(row["said_at"]), "" if row["in_force"] else " (replaced)"
            print(shown(f"    {row['reason']}, recorded by {row['said_by']} on {when}{note}{counts}"))
    unknown = [row for row in rows if row["attempt"] not in known.losses]
    if unknown:
        print(f"  ignored: {plural(len(unknown), 'reason')} for attempts that no known disruption began")


# --- from a log -------------------------------------------------------------------------------------------------------


def _read(name: str) -> Entries:
    if name == "-":
        data = sys.stdin.buffer.read(MOST + 1)
    else:
        with files.open_given(Path(name)) as file:
            data = file.read(MOST + 1)
    if len(data) > MOST:
        raise GoodputError(f"{shown(name)} holds more than {MOST // files.MIB} MiB: export a shorter time range")
    return read(data, "standard input" if name == "-" else shown(name))


def _import(found: Sequence[RecordedRun], log: Entries, options: argparse.Namespace) -> None:
    telling = [entry for entry in log.found if entry.tells.reason is not None]
    matched: set[int] = set()
    for one in found:
        try:
            known = disrupted(one)
        except (JournalError, OSError, ValueError) as error:
            if len(found) == 1:
                raise
            print(f"otel-goodput: run {shown(repr(one.run_id))}: {shown(str(error))}", file=sys.stderr)
            continue
        among = matching.outages(one.listed(), [known.losses[at] for at in sorted(known.losses)])
        matches = matching.matches(telling, among, arguments.margin(options))
        if options.named:
            matches = [match for match in matches if match.by_name]
        matched |= {id(match.entry) for match in matches}
        _import_into(one, known, matching.best(matches), dry_run=options.dry_run)
    silent, missed = len(log.found) - len(telling), len(telling) - len(matched)
    parts = [f"{len(matched)} matched", f"{missed} matched no disruption", f"{silent} that give no reason"]
    if log.left_out:
        parts.append(f"{log.left_out} unreadable or from another log")
    count = len(log.found) + log.left_out
    print(f"{log.kind}: {count} {'entry' if count == 1 else 'entries'}, {', '.join(parts)}")


def _import_into(found: RecordedRun, known: Disrupted, best: dict[int, matching.Match], *, dry_run: bool) -> None:
    said = reasons.read_reasons(found.folder).statements
    imported = reasons.in_force(one for one in said if not one.person)
    counting = reasons.in_force(said)
    new: list[Statement] = []
    for attempt, match in sorted(best.items()):
        tells, reason = match.entry.tells, match.entry.tells.reason
        assert reason is not None
        how = "matched by name" if match.by_name else "matched by time only"
        one = reasons.statement(
            attempt,
            reason,
            known.losses[attempt].reason,
            match.entry.by,
            person=False,
            said_at=time.time(),
            note=f"at {format_moment(match.at / NS)}, {how}",
            strength=tells.strength + _BY_NAME * match.by_name,
        )
        earlier = imported.get(attempt)
        about = f"{one.said_by}, {one.note}; originally {one.first_reason}"
        told = f"run {known.run_id!r}: attempt {attempt}: {reason} ({about})"
        if earlier is not None and earlier.strength >= one.strength:
            told += f": nothing new, {earlier.said_by} already recorded {earlier.reason}"
        else:
            new.append(one)
            held = counting.get(attempt)
            if dry_run:
                told += ": would be recorded"
            if held is not None and held.person:
                told += f": {held.reason} still applies, because {held.said_by} recorded it by hand"
        print(shown(told))
    if new and not dry_run:
        _keep(found, new)


# --- where it is kept -------------------------------------------------------------------------------------------------


def _keep(found: RecordedRun, statements: Sequence[Statement]) -> None:
    """Add statements to what was said of a run, at its URL if it has one.

    A storage replaces whole objects, so what another command said at the same moment may be lost, or may lose ours: the
    object is read again, and ours are added once more if they are not in it.

    Raises:
        JournalError: the URL cannot be read or written.
        OSError: the file cannot be written.
    """
    run, mirror = found.folder, found.mirror
    if mirror is None:
        reasons.append(run, statements)
        return
    try:
        for _ in range(_TRIES):
            mirror.renew(run.reasons_path)
            there = set(reasons.read_reasons(run).statements)
            missing = [one for one in statements if one not in there]
            if not missing:
                return
            reasons.append(run, missing)
            mirror.put(run.reasons_path)
    except JournalError:
        raise
    except Exception as error:  # each fsspec filesystem raises its own errors
        why = without_credentials(str(error) or type(error).__name__)
        raise JournalError(f"the reason cannot be saved at {mirror.shown}: {why}") from error
    raise JournalError(f"the reason cannot be saved at {mirror.shown}: other writers keep changing it; try again")
