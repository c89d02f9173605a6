"""``otel-goodput send``: sends over OTLP, later or from another machine, what the exporter ``file`` wrote."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from otel_goodput._runtime import files
from otel_goodput._runtime.installation import install_command
from otel_goodput._text.redact import redact, secrets
from otel_goodput._tools.arguments import above_zero, add_json
from otel_goodput._tools.send.lines import METRICS, TRACES, Request, left, read, signals_of, sources, whole_lines
from otel_goodput._tools.send.progress import Losses, Progress, locked
from otel_goodput._tools.send.receivers import ACCEPTED, CLOSED, LATER, UNSURE, Answer, late, open_destination, receiver
from otel_goodput._tools.waiting import Screen, begin
from otel_goodput.errors import ConfigurationError
from otel_goodput.exporters.otlp_variables import EXPORTER_MODULES, Endpoint, endpoint, variables
from otel_goodput.exporters.spec import SIGNALS

_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 10.0
_FIRST_TRY_S: Final = 0.5
_LEAST_TRY_S: Final = 0.02
_TICK_S: Final = 0.1
_SPARE_S: Final = 1.0  # for a request that reports its own timeout, which says more than ours
# Following lines to try, to find out whether the receiver refuses one request or fails for all.
_PROBES: Final = 8


def add_send_arguments(parser: argparse.ArgumentParser) -> None:
    words = "file of OTLP JSON lines, or a folder of a run, of all runs or of a collector"
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=words)
    parser.add_argument("--endpoint", metavar="URL", help="receiver to send to (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
    words = "protocol to use (default: OTEL_EXPORTER_OTLP_PROTOCOL, else grpc)"
    parser.add_argument("--protocol", choices=tuple(EXPORTER_MODULES), help=words)
    parser.add_argument(
        "--timeout",
        type=above_zero("positive number of seconds"),
        default=60.0,
        metavar="S",
        help="total seconds to spend on a receiver that does not accept data (default 60)",
    )
    parser.add_argument("--again", action="store_true", help="from the beginning, including data sent there before")
    parser.add_argument("--dry-run", action="store_true", help="show what would be sent where, and send nothing")
    parser.add_argument("--quiet", action="store_true", help="print only errors")
    add_json(parser)


def run_send(options: argparse.Namespace) -> int:
    """Send the files; returns the exit status: 0 if everything has arrived, 1 if not, 2 on wrong usage."""
    environ = _environment(options)
    screen = Screen(secrets(environ), quiet=options.quiet or options.json, waits=not options.quiet)
    try:
        named = {path: signals_of(path) for path in sources(options.files)}
        sending = Sending(environ, screen, patience_s=options.timeout, again=options.again, dry=options.dry_run)
    except (ConfigurationError, ImportError) as error:
        screen.complain(f"{error}: {install_command('otlp')}" if isinstance(error, ImportError) else str(error))
        return 2
    with closing(sending):
        for path, signals in named.items() if options.again else ():
            sending.forget(path, signals)
        results, reason = _send(sending, named, screen, "would go" if options.dry_run else "sent")
    if reason:
        left = sum(result.left for result in results)
        screen.complain(
            f"{reason}; {left} requests are left; run this command again{', without --again,' * options.again} "
            "to continue"
        )
    done = not reason and all(result.whole() for result in results)
    if options.json:
        answer = {
            "done": done,
            "dry_run": options.dry_run,
            "reason": redact(reason, secrets(environ)),
            "files": [{**asdict(result), "file": redact(result.file)} for result in results],
        }
        sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if done else 1


def _send(
    sending: Sending, files: Mapping[Path, Sequence[str]], screen: Screen, verb: str
) -> tuple[list[SentFile], str]:
    """Send the files; returns the outcome of each, and why not all were sent (empty if they were)."""
    results: list[SentFile] = []
    reasons: dict[str, None] = {}
    over = False
    for path, signals in files.items():
        result = SentFile(file=str(path), receiver=sending.receiver(signals))
        results.append(result)
        stays = over
        if not over:
            try:
                sending.send(path, signals, result)
            except Stopped as stopped:
                reasons[str(stopped)] = None
                stays, over = True, stopped.everywhere
        if stays:
            result.left = sending.rest(path, signals)
        screen.write(f"{path}: {result} {verb} to {result.receiver}" if result.sent else f"{path}: {result}")
    return results, "; ".join(reasons)


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment, with the command line's endpoint and protocol overriding those of both signals."""
    environ = dict(os.environ)
    for name, value in (("ENDPOINT", options.endpoint), ("PROTOCOL", options.protocol)):
        if value is not None:
            for signal in SIGNALS:
                own, common = variables(signal, name)
                environ.pop(own, None)
                environ[common] = value
    return environ


@dataclass(kw_only=True)
class SentFile(Losses):
    """The result of sending one file."""

    file: str
    receiver: str
    before: int = 0  # lines processed by earlier calls; the losses include theirs
    sent: int = 0  # requests accepted now, with `spans` and `points`
    spans: int = 0
    points: int = 0
    repeated: int = 0  # requests that may have arrived twice
    left: int = 0  # lines still to send
    torn_bytes: int = 0  # after the last complete line

    def whole(self) -> bool:
        """Whether every complete line of the file has arrived."""
        return not (self.refused or self.unreadable or self.rejected or self.left)

    def take(self, request: Request, answer: Answer) -> None:
        self.sent += 1
        self.rejected += answer.rejected
        self.repeated += answer.maybe_delivered
        if request.signal == TRACES:
            self.spans += request.items - answer.rejected
        else:
            self.points += request.items - answer.rejected

    def lost(self) -> str:
        """Describe what did not arrive; empty if nothing was lost."""
        return _counts(
            (self.refused, "refused"), (self.unreadable, "unreadable"), (self.rejected, "spans or points not accepted")
        )

    def __str__(self) -> str:
        kinds = _counts((self.spans, "spans"), (self.points, "points"))
        others = _counts(
            (self.repeated, "possibly duplicated"),
            (self.left, "left"),
            (self.torn_bytes, "bytes of an unfinished last line"),
        )
        sent = f"{self.sent} requests{f' ({kinds})' if kinds else ''}"
        return ", ".join(filter(None, (sent, self.lost(), others)))


def _counts(*counts: tuple[int, str]) -> str:
    """Return the counts above 0, each with what it counts."""
    return ", ".join(f"{count} {what}" for count, what in counts if count)


class Stopped(Exception):
    """No more can be sent now; `everywhere`: other files would probably fail too."""

    def __init__(self, reason: str, *, everywhere: bool = True) -> None:
        super().__init__(reason)
        self.everywhere = everywhere


class Sending:
    """Sends files, configured by OTLP's standard variables in `environ`. Raises as :func:`open_destination` does.

    Failing requests and the waits between them take `patience_s` at most, all together. With `again`, each file is sent
    from its beginning; unless `dry`, when nothing is sent or written, the caller must :meth:`forget` each file first.
    """

    def __init__(
        self, environ: Mapping[str, str], screen: Screen, *, patience_s: float, again: bool, dry: bool
    ) -> None:
        self._screen = screen
        self._patience_s = patience_s
        self._again = again
        self._dry = dry
        self._places: dict[str, Endpoint] = {signal: endpoint(environ, signal) for signal in (TRACES, METRICS)}
        self._open = {signal: open_destination(place, environ) for signal, place in self._places.items()}

    def close(self) -> None:
        for destination in self._open.values():
            destination.close()

    def receiver(self, signals: Sequence[str]) -> str:
        """Return the receiver of a file with these signals, as it is displayed and saved."""
        return " and ".join(dict.fromkeys(receiver(self._places[signal]) for signal in signals))

    def forget(self, path: Path, signals: Sequence[str]) -> None:
        """Save that the file is to be sent from its beginning."""
        if not self._dry:
            with locked(path), files.open_named(path) as content:
                Progress(path, content, self.receiver(signals), again=True).write(0, 0, Losses(), doubt=False)

    def rest(self, path: Path, signals: Sequence[str]) -> int:
        """Return the number of lines of the file that are still to send."""
        with files.open_named(path) as content:
            return left(content, Progress(path, content, self.receiver(signals)).offset)

    def send(self, path: Path, signals: Sequence[str], result: SentFile) -> None:
        """Send the rest of a file that may contain these signals, and update `result`.

        Raises:
            Stopped: the receiver accepts no more; the progress is saved.
            GoodputError: another process is sending the file, or the saved progress does not match it.
        """
        with nullcontext() if self._dry else locked(path), self._progress(path, signals) as progress:
            self._lines(progress, result)
            if not self._dry:
                progress.set_doubt(doubt=False)

    @contextmanager
    def _progress(self, path: Path, signals: Sequence[str]) -> Iterator[Progress]:
        with files.open_named(path) as content:
            progress = Progress(path, content, self.receiver(signals), again=self._again and self._dry)
            if progress.origin is not None and not self._dry:
                with locked(progress.origin):  # another process may still be sending the file under its earlier name
                    progress = Progress(path, content, self.receiver(signals))
            if progress.replaced:
                self._screen.write(f"{path}: the file was replaced since the last send; sending it from the beginning")
            yield progress

    def _lines(self, progress: Progress, result: SentFile) -> None:
        """Send the lines of a file in their order.

        If the receiver only says that it failed, either it refuses this request or it is down. The request is postponed
        until a later one is accepted: then the receiver is not down, and what fails once more counts as refused.
        """
        path = progress.path
        result.before = progress.lines
        vars(result).update(asdict(progress.losses))
        if lost := result.lost():
            self._screen.complain(f"{path}: lost when it was sent before: {lost}; use --again to send all of it again")
        end, cut_off = progress.offset, progress.doubt
        postponed: list[tuple[int, Request, Answer]] = []
        ahead = False  # whether a request after a postponed one was accepted
        for number, end, data in whole_lines(progress.content, progress.offset, progress.lines):
            request = self._request(f"{path}:{number}", data, result)
            if request is not None and self._dry:
                result.take(request, Answer(ACCEPTED))
            elif request is not None:
                if cut_off:
                    self._screen.write(f"{path}: an earlier send was interrupted; one request may arrive twice")
                answer = self._deliver(progress, request, cut_off, ahead)
                cut_off = False
                if answer.outcome == UNSURE:
                    postponed.append((number, request, answer))
                else:
                    self._book(f"{path}:{number}", request, answer, result)
                    ahead |= answer.outcome == ACCEPTED and bool(postponed)
                if answer.outcome == ACCEPTED:
                    for line, other, first in [one for one in postponed if one[1].signal == request.signal]:
                        again = self._deliver(progress, other, first.maybe_delivered, ahead)
                        self._book(f"{path}:{line}", other, again, result)
                        postponed.remove((line, other, first))
                if postponed and number - postponed[0][0] >= _PROBES:
                    break
            if not (postponed or self._dry):
                # The doubt is about the next line, which is sent immediately; this saves a second write per line.
                progress.write(end, number, result, doubt=True)
                ahead = False
            self._screen.show(f"{path.name}: {end / 2**20:.1f} of {progress.size() / 2**20:.1f} MiB, {result}")
        if postponed:
            raise Stopped(self._reason(*postponed[0][1:]), everywhere=False)
        result.torn_bytes = max(progress.size() - end, 0)

    def _request(self, place: str, data: bytes, result: SentFile) -> Request | None:
        """Return the request in a line; None if the line is empty or cannot be read."""
        try:
            return read(data) if data.strip() else None
        except ValueError as error:
            self._screen.complain(f"{place}: {error}; line skipped")
            result.unreadable += 1
            return None

    def _book(self, place: str, request: Request, answer: Answer, result: SentFile) -> None:
        if answer.outcome != ACCEPTED:
            self._screen.complain(f"{place}: refused: {answer.message}")
            result.refused += 1
            return
        result.take(request, answer)
        if answer.rejected or answer.message:
            self._screen.complain(f"{place}: {answer.rejected} of {request.items} not accepted: {answer.message}")

    def _deliver(self, progress: Progress, request: Request, maybe_delivered: bool, ahead: bool) -> Answer:
        """Send a request, with retries, until it is accepted or refused, or the receiver fails.

        `maybe_delivered` says whether it may have arrived already, which the answer then repeats. While no try is under
        way, the saved progress is in doubt only if this request may have arrived, or later ones have (`ahead`). Raises
        Stopped if the receiver accepts nothing, or the patience is used up.
        """
        trouble = "no answer yet"
        wait_s, allowed_s = _FIRST_WAIT_S, max(self._patience_s, _FIRST_TRY_S)
        since = began = time.monotonic()

        def waiting() -> None:
            now = time.monotonic()
            left = max(self._patience_s - (now - began), 0.0)
            self._screen.wait(
                f"{receiver(self._places[request.signal])}: {trouble}; waiting since {now - since:.0f} s, "
                f"for {left:.0f} s at most",
                since,
            )

        while True:
            progress.set_doubt(doubt=True)
            destination = self._open[request.signal]
            timeout_s = min(destination.timeout_s, allowed_s)
            call = begin(partial(destination.send, request, timeout_s))
            until = time.monotonic() + timeout_s + _SPARE_S
            while not wait([call], _TICK_S).done and time.monotonic() < until:
                waiting()
            answer = call.result() if call.done() else late(timeout_s)
            maybe_delivered |= answer.maybe_delivered
            answer = answer._replace(maybe_delivered=maybe_delivered)
            if answer.outcome == ACCEPTED:
                return answer
            progress.set_doubt(doubt=maybe_delivered or ahead)
            if answer.outcome == CLOSED:
                raise Stopped(self._reason(request, answer))
            if answer.outcome != LATER:
                return answer
            self._patience_s -= time.monotonic() - began
            began, trouble = time.monotonic(), answer.message
            if self._patience_s < _LEAST_TRY_S or answer.wait_s > self._patience_s:
                raise Stopped(self._reason(request, answer))
            # A random wait, so that many senders do not retry at the same time; at most half of the rest, to leave time
            # for a last try.
            until = began + max(answer.wait_s, min(wait_s * random.uniform(0.5, 1.0), self._patience_s / 2))
            while (pause := until - time.monotonic()) > 0:
                time.sleep(min(pause, _TICK_S))
                waiting()
            self._patience_s -= time.monotonic() - began
            began, allowed_s = time.monotonic(), max(self._patience_s, _LEAST_TRY_S)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _reason(self, request: Request, answer: Answer) -> str:
        place = self._places[request.signal]
        return f"{receiver(place)}: {answer.message}; {place.advice(answer.message)}"
