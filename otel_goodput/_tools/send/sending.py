"""Sends files in order and their requests one by one, and counts the results."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from otel_goodput._runtime import files
from otel_goodput._tools.progress import Screen
from otel_goodput._tools.send.destination import (
    ACCEPTED,
    CLOSED,
    LATER,
    UNSURE,
    Answer,
    Destination,
    exchange,
    open_destination,
    pause,
    receiver,
)
from otel_goodput._tools.send.lines import METRICS, TRACES, Line, Request, left, read, whole_lines
from otel_goodput._tools.send.progress import Losses, Progress, earlier, locked
from otel_goodput.exporters.otlp_variables import Endpoint, endpoint

_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 10.0
_FIRST_TRY_S: Final = 0.5
_LEAST_TRY_S: Final = 0.02
# Following requests to try, to find out whether the receiver refuses one request or fails for all.
_PROBES: Final = 8


@dataclass(kw_only=True)
class SentFile(Losses):
    """The result of sending one file.

    Attributes:
        before: lines processed by earlier calls; the losses include theirs.
        sent: requests accepted now, with `spans` and `points`.
        repeated: requests that may have arrived twice.
        left: lines still to send.
        torn_bytes: bytes after the last complete line.
    """

    file: str
    receiver: str
    before: int = 0
    sent: int = 0
    spans: int = 0
    points: int = 0
    repeated: int = 0
    left: int = 0
    torn_bytes: int = 0

    def whole(self) -> bool:
        """Whether every complete line of the file has arrived."""
        return not (self.refused or self.unreadable or self.rejected or self.left)

    def take(self, request: Request, rejected: int) -> None:
        self.sent += 1
        self.rejected += rejected
        if request.signal == TRACES:
            self.spans += request.items - rejected
        else:
            self.points += request.items - rejected

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
    """No more can be sent now.

    Attributes:
        everywhere: whether other files would probably fail too.
    """

    def __init__(self, reason: str, *, everywhere: bool = True) -> None:
        super().__init__(reason)
        self.everywhere = everywhere


class Sending:
    """Sends files, configured by OTLP's standard variables in `environ`.

    Args:
        environ: the environment.
        screen: prints results, errors and progress.
        patience_s: total seconds for failing requests and the waits between them.
        again: start each file from its beginning. Unless `dry`, the caller must :meth:`forget` each file first.
        dry: send nothing and write nothing.

    Raises:
        ConfigurationError: an endpoint is not valid, or a header cannot be sent.
        ImportError: the packages for a protocol are not installed.
        OSError: a certificate cannot be read.
    """

    def __init__(
        self, environ: Mapping[str, str], screen: Screen, *, patience_s: float, again: bool = False, dry: bool = False
    ) -> None:
        self._screen = screen
        self._patience_s = patience_s
        self._again = again
        self._dry = dry
        self._places: dict[str, Endpoint] = {signal: endpoint(environ, signal) for signal in (TRACES, METRICS)}
        self._open: dict[str, Destination] = {
            signal: open_destination(place, environ) for signal, place in self._places.items()
        }

    def close(self) -> None:
        for destination in self._open.values():
            destination.close()

    def earlier(self, path: Path, signals: Sequence[str]) -> list[Path]:
        """Return the files to send before this one, as ``progress.earlier`` does. Raises GoodputError, OSError."""
        return [] if self._again else earlier(path, self.receiver(signals))

    def forget(self, path: Path, signals: Sequence[str]) -> None:
        """Save that the file is to be sent from its beginning. Raises GoodputError, OSError."""
        if not self._dry:
            with locked(path), files.open_named(path) as content:
                Progress(path, content, self.receiver(signals), again=True).write(0, 0, Losses(), doubt=False)

    def receiver(self, signals: Sequence[str]) -> str:
        """Return the receiver of a file with these signals, as it is displayed and saved."""
        return " and ".join(dict.fromkeys(receiver(self._places[signal]) for signal in signals))

    def file(self, path: Path, signals: Sequence[str], result: SentFile) -> None:
        """Send the rest of a file that may contain these signals, and update `result`.

        Raises:
            Stopped: the receiver accepts no more; the progress is saved.
            GoodputError: another process is sending the file, or the saved progress does not match it.
            OSError: the file cannot be read, or its progress cannot be saved beside it.
        """
        if self._dry:
            with self._progress(path, signals) as progress:
                self._lines(progress, result)
            return
        with locked(path), self._progress(path, signals) as progress:
            self._lines(progress, result)
            progress.set_doubt(doubt=False)

    def rest(self, path: Path, signals: Sequence[str]) -> int:
        """Return the number of lines of the file that are still to send. Raises GoodputError, OSError."""
        with files.open_named(path) as content:
            return left(content, Progress(path, content, self.receiver(signals)).offset)

    @contextmanager
    def _progress(self, path: Path, signals: Sequence[str]) -> Iterator[Progress]:
        with files.open_named(path) as content:
            again = self._again and self._dry
            progress = Progress(path, content, self.receiver(signals), again=again)
            if progress.origin is not None and not self._dry:
                with locked(progress.origin):  # another process may still be sending the file under its earlier name
                    progress = Progress(path, content, self.receiver(signals))
            if progress.replaced:
                self._screen.write(f"{path}: the file was replaced since the last send; sending it from the beginning")
            yield progress

    def _lines(self, progress: Progress, result: SentFile) -> None:
        path, before = progress.path, progress.lines
        result.before = before
        for name, count in asdict(progress.losses).items():
            setattr(result, name, count)
        if result.lost():
            self._screen.complain(
                f"{path}: lost when it was sent before: {result.lost()}; use --again to send all of it again"
            )
        end = progress.offset
        cut_off = progress.doubt
        ahead: dict[int, Answer] = {}
        for line in whole_lines(progress.content, end, before):
            if line.number == before + 1 and not self._dry:
                progress.write(progress.offset, progress.lines, result, doubt=cut_off)
            try:
                request = read(line.data) if line.data.strip() else None
            except ValueError as error:
                self._screen.complain(f"{path}:{line.number}: {error}; line skipped")
                result.unreadable += 1
            else:
                if request is not None:
                    answer = Answer(ACCEPTED)
                    if not self._dry:
                        answer = self._settle(progress, line, request, result, ahead, cut_off)
                    if cut_off and answer.outcome == ACCEPTED:
                        self._screen.write(f"{path}: an earlier send was interrupted; one request may arrive twice")
                    result.repeated += answer.maybe_delivered
                    cut_off = False
                    self._book(f"{path}:{line.number}", request, answer, result)
            end = line.end
            if not self._dry:
                # The doubt is about the next line, which is sent immediately; this saves a second write per line.
                progress.write(end, line.number, result, doubt=True)
            self._screen.show(f"{path.name}: {end / 2**20:.1f} of {progress.size() / 2**20:.1f} MiB, {result}")
        result.torn_bytes = max(progress.size() - end, 0)

    def _settle(
        self,
        progress: Progress,
        line: Line,
        request: Request,
        result: SentFile,
        ahead: dict[int, Answer],
        cut_off: bool,
    ) -> Answer:
        """Deliver a line's request and return the answer.

        If the receiver only says that it failed, either it refuses this request or it is down. If it accepts a later
        request, it is not down: this request is then tried once more, and counts as refused if it fails again.

        Args:
            ahead: answers to later lines that were sent early, by line number; changed.
            cut_off: whether an interrupted call may have delivered this request already.

        Raises:
            Stopped: the receiver accepted none of the next requests either.
        """
        answer = ahead.pop(line.number, None) or self._deliver(progress, request, ahead, cut_off)
        if answer.outcome != UNSURE:
            return answer
        if self._takes_others(progress, line, request.signal, ahead):
            return self._deliver(progress, request, ahead, cut_off)
        raise Stopped(self._reason(request, answer), everywhere=False)

    def _takes_others(self, progress: Progress, line: Line, signal: str, ahead: dict[int, Answer]) -> bool:
        """Send some of the next requests of this signal until one is accepted; returns whether one was."""
        for other in islice(whole_lines(progress.content, line.end, line.number), _PROBES):
            try:
                request = read(other.data)
            except ValueError:
                continue  # it is reported when its turn comes
            if request.signal != signal:
                continue
            if other.number not in ahead:
                ahead[other.number] = self._deliver(progress, request, ahead)
            if ahead[other.number].outcome == ACCEPTED:
                return True
        return False

    def _book(self, place: str, request: Request, answer: Answer, result: SentFile) -> None:
        if answer.outcome != ACCEPTED:
            self._screen.complain(f"{place}: refused: {answer.message}")
            result.refused += 1
            return
        result.take(request, answer.rejected)
        if answer.rejected or answer.message:
            self._screen.complain(f"{place}: {answer.rejected} of {request.items} not accepted: {answer.message}")

    def _deliver(
        self, progress: Progress, request: Request, ahead: Mapping[int, Answer], maybe_delivered: bool = False
    ) -> Answer:
        """Send a request, with retries, until it is accepted or refused.

        `maybe_delivered` says whether it may have arrived already, which the answer then repeats. While the outcome is
        not known, the saved progress is in doubt only if this request may have arrived or one of `ahead` was accepted;
        not if there was no connection.

        Raises:
            Stopped: the receiver accepts nothing, or `patience_s` is used up.
            OSError: the progress cannot be saved.
        """
        destination, trouble = self._open[request.signal], ""
        before = any(one.outcome == ACCEPTED for one in ahead.values())
        wait, allowed_s = _FIRST_WAIT_S, max(self._patience_s, _FIRST_TRY_S)
        since = began = time.monotonic()

        def waiting() -> None:
            now = time.monotonic()
            left = max(self._patience_s - (now - began), 0.0)
            self._screen.wait(
                f"{receiver(self._places[request.signal])}: {trouble or 'no answer yet'}; "
                f"waiting since {now - since:.0f} s, for {left:.0f} s at most",
                since,
            )

        def before_sending() -> None:
            progress.set_doubt(doubt=True)

        while True:
            answer = exchange(
                partial(destination.send, request), min(destination.timeout_s, allowed_s), before_sending, waiting
            )
            maybe_delivered |= answer.maybe_delivered
            if answer.outcome == ACCEPTED:
                return answer._replace(maybe_delivered=maybe_delivered)
            progress.set_doubt(doubt=maybe_delivered or before)
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
            pause(max(answer.wait_s, min(wait * random.uniform(0.5, 1.0), self._patience_s / 2)), waiting)
            self._patience_s -= time.monotonic() - began
            began, allowed_s = time.monotonic(), self._patience_s
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _reason(self, request: Request, answer: Answer) -> str:
        place = self._places[request.signal]
        return f"{receiver(place)}: {answer.message}; {place.advice(answer.message)}"
