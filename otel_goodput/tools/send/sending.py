"""Files in order, requests one by one, and what became of them."""

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

from otel_goodput import files
from otel_goodput.exporters.endpoints import Endpoint, endpoint
from otel_goodput.tools.send.destination import Destination, open_destination, receiver
from otel_goodput.tools.send.exchange import ACCEPTED, CLOSED, LATER, UNSURE, Answer, exchange, pause
from otel_goodput.tools.send.lines import METRICS, TRACES, Line, Request, left, read, whole_lines
from otel_goodput.tools.send.progress import Losses, Progress, alone, earlier
from otel_goodput.tools.send.screen import Screen

_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 10.0
_FIRST_TRY_S: Final = 0.5
_LEAST_TRY_S: Final = 0.02
# How many requests are tried to see whether it is the one before them that is refused, or any.
_PROBES: Final = 8


@dataclass(kw_only=True)
class SentFile(Losses):
    """What became of the lines of a file.

    `before` were done with earlier; losses are of all that was done with, earlier too; `repeated` requests may be there
    twice; `torn_bytes` follow the last whole line.
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
        """Whether all there was has arrived."""
        return not (self.refused or self.unreadable or self.rejected or self.left)

    def take(self, request: Request, rejected: int) -> None:
        self.sent += 1
        self.rejected += rejected
        if request.signal == TRACES:
            self.spans += request.items - rejected
        else:
            self.points += request.items - rejected

    def lost(self) -> str:
        """What did not arrive, empty where nothing is known of that."""
        counts = (
            (self.refused, "refused"),
            (self.unreadable, "unreadable"),
            (self.rejected, "spans or points not taken"),
        )
        return ", ".join(f"{count} {what}" for count, what in counts if count)

    def __str__(self) -> str:
        counts = (
            (self.repeated, "perhaps there twice"),
            (self.left, "left"),
            (self.torn_bytes, "bytes of an unfinished last line"),
        )
        kinds = [f"{count} {what}" for count, what in ((self.spans, "spans"), (self.points, "points")) if count]
        inside = f" ({', '.join(kinds)})" if kinds else ""
        lost = [self.lost()] if self.lost() else []
        others = (f"{count} {what}" for count, what in counts if count)
        return ", ".join([f"{self.sent} requests{inside}", *lost, *others])


class Stopped(Exception):
    """No more can be sent now.

    Attributes:
        everywhere: whether other files are not taken either, as far as we know.
    """

    def __init__(self, reason: str, *, everywhere: bool = True) -> None:
        super().__init__(reason)
        self.everywhere = everywhere


class Sending:
    """Sends files by the standard variables in `environ`.

    Args:
        patience_s: seconds in all for requests that fail and waits between them.
        dry: send nothing and write nothing.
        again: a dry look at each file from its beginning.

    Raises:
        ConfigurationError: an endpoint is none, or a header cannot be sent.
        ImportError: the packages are not installed.
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
        """The files to send before this one, for they had its name. Raises GoodputError, OSError."""
        return [] if self._again else earlier(path, self.receiver(signals))

    def forget(self, path: Path, signals: Sequence[str]) -> None:
        """The file is to be sent from its beginning, also if we are cut off before. Raises GoodputError, OSError."""
        if not self._dry:
            with alone(path), files.open_named(path) as content:
                Progress(path, content, self.receiver(signals), again=True).write(0, 0, Losses(), doubt=False)

    def receiver(self, signals: Sequence[str]) -> str:
        """Where a file with these signals goes, as it is told and remembered."""
        return " and ".join(dict.fromkeys(receiver(self._places[signal]) for signal in signals))

    def file(self, path: Path, signals: Sequence[str], account: SentFile) -> None:
        """Send what is left of a file that may have these signals.

        Raises:
            Stopped: the receiver takes no more; what was taken is remembered.
            GoodputError: another process is sending it, or what is remembered of it does not fit.
            OSError: it cannot be read, or written beside.
        """
        if self._dry:
            with self._progress(path, signals) as progress:
                self._lines(progress, account)
            return
        with alone(path), self._progress(path, signals) as progress:
            self._lines(progress, account)
            progress.mark(doubt=False)

    def rest(self, path: Path, signals: Sequence[str]) -> int:
        """How many lines of the file are left to send. Raises GoodputError, OSError."""
        with files.open_named(path) as content:
            return left(content, Progress(path, content, self.receiver(signals)).offset)

    @contextmanager
    def _progress(self, path: Path, signals: Sequence[str]) -> Iterator[Progress]:
        with files.open_named(path) as content:
            again = self._again and self._dry
            progress = Progress(path, content, self.receiver(signals), again=again)
            if progress.origin is not None and not self._dry:
                with alone(progress.origin):  # who began it under that name may not have ended
                    progress = Progress(path, content, self.receiver(signals))
            if progress.replaced:
                self._screen.tell(f"{path}: another file than the one that was sent before; from its beginning")
            yield progress

    def _lines(self, progress: Progress, account: SentFile) -> None:
        path, before = progress.path, progress.lines
        account.before = before
        for name, count in asdict(progress.losses).items():
            setattr(account, name, count)
        if account.lost():
            self._screen.complain(f"{path}: of what was sent before: {account.lost()}; --again tries all of it anew")
        end = progress.offset
        cut_off = progress.doubt
        ahead: dict[int, Answer] = {}
        for line in whole_lines(progress.content, end, before):
            if line.number == before + 1 and not self._dry:
                progress.write(progress.offset, progress.lines, account, doubt=cut_off)
            try:
                request = read(line.data) if line.data.strip() else None
            except ValueError as error:
                self._screen.complain(f"{path}:{line.number}: {error}, left out")
                account.unreadable += 1
            else:
                if request is not None:
                    answer = Answer(ACCEPTED)
                    if not self._dry:
                        answer = self._settle(progress, line, request, account, ahead, cut_off)
                    if cut_off and answer.outcome == ACCEPTED:
                        self._screen.tell(f"{path}: an earlier send was cut off; one request may be there twice")
                    account.repeated += answer.perhaps
                    cut_off = False
                    self._book(f"{path}:{line.number}", request, answer, account)
            end = line.end
            if not self._dry:
                # Of the next one, so that a line costs one write: it goes at once.
                progress.write(end, line.number, account, doubt=True)
            self._screen.show(f"{path.name}: {end / 2**20:.1f} of {progress.size() / 2**20:.1f} MiB, {account}")
        account.torn_bytes = max(progress.size() - end, 0)

    def _settle(
        self,
        progress: Progress,
        line: Line,
        request: Request,
        account: SentFile,
        ahead: dict[int, Answer],
        cut_off: bool,
    ) -> Answer:
        """What became of a line. `ahead`: what became of those that were sent before it was their turn. `cut_off`:
        whether it was sent before and may be there.

        A receiver that says no more than that it failed may mean this request or be down. One that takes a later
        request is not down: then this one has another chance, and is refused.

        Raises:
            Stopped: none of the next was taken either.
        """
        answer = ahead.pop(line.number, None) or self._deliver(progress, request, ahead, cut_off)
        if answer.outcome != UNSURE:
            return answer
        if self._takes_others(progress, line, request.signal, ahead):
            return self._deliver(progress, request, ahead, cut_off)
        raise Stopped(self._reason(request, answer), everywhere=False)

    def _takes_others(self, progress: Progress, line: Line, signal: str, ahead: dict[int, Answer]) -> bool:
        """Whether the receiver takes one of the next requests of this signal."""
        for other in islice(whole_lines(progress.content, line.end, line.number), _PROBES):
            try:
                request = read(other.data)
            except ValueError:
                continue  # its turn will come
            if request.signal != signal:
                continue
            if other.number not in ahead:
                ahead[other.number] = self._deliver(progress, request, ahead)
            if ahead[other.number].outcome == ACCEPTED:
                return True
        return False

    def _book(self, place: str, request: Request, answer: Answer, account: SentFile) -> None:
        if answer.outcome != ACCEPTED:
            self._screen.complain(f"{place}: refused: {answer.said}")
            account.refused += 1
            return
        account.take(request, answer.rejected)
        if answer.rejected or answer.said:
            self._screen.complain(f"{place}: {answer.rejected} of {request.items} not taken: {answer.said}")

    def _deliver(
        self, progress: Progress, request: Request, ahead: Mapping[int, Answer], perhaps: bool = False
    ) -> Answer:
        """Send a request until it is taken or refused. `perhaps`: whether it may be there already; so says the answer.

        What is remembered doubts no more than there is to doubt: that a request went which may be there, or one of
        `ahead` is, and nothing where there never was a connection.

        Raises:
            Stopped: the receiver takes nothing, or patience is at its end.
            OSError: what is to be remembered cannot be written.
        """
        destination, said = self._open[request.signal], ""
        before = any(one.outcome == ACCEPTED for one in ahead.values())
        wait, allowed_s = _FIRST_WAIT_S, max(self._patience_s, _FIRST_TRY_S)
        since = began = time.monotonic()

        def waiting() -> None:
            now = time.monotonic()
            left = max(self._patience_s - (now - began), 0.0)
            self._screen.wait(
                f"{receiver(self._places[request.signal])}: {said or 'no answer yet'}; "
                f"waiting since {now - since:.0f} s, for {left:.0f} s at most",
                since,
            )

        def begins() -> None:
            progress.mark(doubt=True)

        while True:
            answer = exchange(
                partial(destination.send, request), min(destination.timeout_s, allowed_s), begins, waiting
            )
            perhaps |= answer.perhaps
            if answer.outcome == ACCEPTED:
                return answer._replace(perhaps=perhaps)
            progress.mark(doubt=perhaps or before)
            if answer.outcome == CLOSED:
                raise Stopped(self._reason(request, answer))
            if answer.outcome != LATER:
                return answer
            self._patience_s -= time.monotonic() - began
            began, said = time.monotonic(), answer.said
            if self._patience_s < _LEAST_TRY_S or answer.wait_s > self._patience_s:
                raise Stopped(self._reason(request, answer))
            # Many who wait for the same receiver are not to come at the same time; and the last try has its time too.
            pause(max(answer.wait_s, min(wait * random.uniform(0.5, 1.0), self._patience_s / 2)), waiting)
            self._patience_s -= time.monotonic() - began
            began, allowed_s = time.monotonic(), self._patience_s
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _reason(self, request: Request, answer: Answer) -> str:
        place = self._places[request.signal]
        return f"{receiver(place)}: {answer.said}; {place.advice(answer.said)}"
