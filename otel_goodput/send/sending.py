"""Files in order, requests one by one, and what became of them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from otel_goodput.exporters.endpoints import Endpoint, endpoint
from otel_goodput.send.destination import (
    ACCEPTED,
    CLOSED,
    LATER,
    UNSURE,
    Answer,
    Destination,
    open_destination,
    receiver,
)
from otel_goodput.send.lines import METRICS, TRACES, Line, Request, left, read, whole_lines
from otel_goodput.send.progress import Losses, Progress, alone, earlier
from otel_goodput.send.screen import Screen

_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 10.0
_LAST_TRY_S: Final = 0.5
# How many requests are tried to see whether it is the one before them that is refused, or any.
_PROBES: Final = 8


@dataclass(kw_only=True)
class Account(Losses):
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
        perhaps: whether a request that is to be sent again may have been accepted.
        everywhere: whether other files are not taken either, as far as we know.
    """

    def __init__(self, reason: str, *, perhaps: bool, everywhere: bool = True) -> None:
        super().__init__(reason)
        self.perhaps = perhaps
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
            with alone(path), path.open("rb") as content:
                Progress(path, content, self.receiver(signals), again=True).write(0, 0, Losses(), doubt=False)

    def receiver(self, signals: Sequence[str]) -> str:
        """Where a file with these signals goes, as it is told and remembered."""
        return " and ".join(dict.fromkeys(receiver(self._places[signal]) for signal in signals))

    def file(self, path: Path, signals: Sequence[str], account: Account) -> None:
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
            try:
                self._lines(progress, account)
            except Stopped as stopped:
                progress.write(progress.offset, progress.lines, progress.losses, doubt=stopped.perhaps)
                raise
            if progress.doubt:
                progress.write(progress.offset, progress.lines, progress.losses, doubt=False)

    def rest(self, path: Path, signals: Sequence[str]) -> int:
        """How many lines of the file are left to send. Raises GoodputError, OSError."""
        with path.open("rb") as content:
            return left(content, Progress(path, content, self.receiver(signals)).offset)

    @contextmanager
    def _progress(self, path: Path, signals: Sequence[str]) -> Iterator[Progress]:
        with path.open("rb") as content:
            again = self._again and self._dry
            progress = Progress(path, content, self.receiver(signals), again=again)
            if progress.origin is not None and not self._dry:
                with alone(progress.origin):  # who began it under that name may not have ended
                    progress = Progress(path, content, self.receiver(signals))
            if progress.replaced:
                self._screen.tell(f"{path}: another file than the one that was sent before; from its beginning")
            yield progress

    def _lines(self, progress: Progress, account: Account) -> None:
        path, before = progress.path, progress.lines
        account.before = before
        for name, count in asdict(progress.losses).items():
            setattr(account, name, count)
        if account.lost():
            self._screen.complain(f"{path}: of what was sent before: {account.lost()}; --again tries all of it anew")
        end = progress.offset
        ahead: dict[int, Answer] = {}
        for line in whole_lines(progress.content, end, before):
            if line.number == before + 1:
                self._begin(progress, account)
            try:
                request = read(line.data) if line.data.strip() else None
            except ValueError as error:
                self._screen.complain(f"{path}:{line.number}: {error}, left out")
                account.unreadable += 1
            else:
                if request is not None:
                    answer = Answer(ACCEPTED) if self._dry else self._settle(progress, line, request, account, ahead)
                    self._book(f"{path}:{line.number}", request, answer, account)
            end = line.end
            if not self._dry:
                progress.write(end, line.number, account, doubt=True)
            self._screen.show(f"{path.name}: {end / 2**20:.1f} of {progress.size() / 2**20:.1f} MiB, {account}")
        account.torn_bytes = max(progress.size() - end, 0)

    def _begin(self, progress: Progress, account: Account) -> None:
        """Whoever finds this doubt later knows that we did not come to an end."""
        if progress.doubt:
            self._screen.tell(f"{progress.path}: an earlier send was cut off; one request may be there twice")
            account.repeated += 1
        if not self._dry:
            progress.write(progress.offset, progress.lines, account, doubt=True)

    def _settle(
        self, progress: Progress, line: Line, request: Request, account: Account, ahead: dict[int, Answer]
    ) -> Answer:
        """What became of a line. `ahead`: what became of those that were sent before it was their turn.

        A receiver that says no more than that it failed may mean this request or be down. One that takes a later
        request is not down: then this one has another chance, and is refused.

        Raises:
            Stopped: none of the next was taken either.
        """
        answer = ahead.pop(line.number, None) or self._deliver(request, account)
        if answer.outcome != UNSURE:
            return answer
        try:
            if self._takes_others(progress, line, request.signal, account, ahead):
                return self._deliver(request, account)
        except Stopped as stopped:
            stopped.perhaps |= any(one.outcome == ACCEPTED for one in ahead.values())
            raise
        place = self._places[request.signal]
        raise Stopped(f"{receiver(place)}: {answer.said}; {place.advice(answer.said)}", perhaps=False, everywhere=False)

    def _takes_others(
        self, progress: Progress, line: Line, signal: str, account: Account, ahead: dict[int, Answer]
    ) -> bool:
        """Whether the receiver takes one of the next requests of this signal."""
        for other in islice(whole_lines(progress.content, line.end, line.number), _PROBES):
            try:
                request = read(other.data)
            except ValueError:
                continue  # its turn will come
            if request.signal != signal:
                continue
            if other.number not in ahead:
                ahead[other.number] = self._deliver(request, account)
            if ahead[other.number].outcome == ACCEPTED:
                return True
        return False

    def _book(self, place: str, request: Request, answer: Answer, account: Account) -> None:
        if answer.outcome != ACCEPTED:
            self._screen.complain(f"{place}: refused: {answer.said}")
            account.refused += 1
            return
        account.take(request, answer.rejected)
        if answer.rejected or answer.said:
            self._screen.complain(f"{place}: {answer.rejected} of {request.items} not taken: {answer.said}")

    def _deliver(self, request: Request, account: Account) -> Answer:
        destination, place = self._open[request.signal], self._places[request.signal]
        wait, perhaps = _FIRST_WAIT_S, False
        while True:
            began = time.monotonic()
            answer = destination.send(request, min(destination.timeout_s, max(self._patience_s, _LAST_TRY_S)))
            perhaps |= answer.perhaps
            if answer.outcome == CLOSED:
                raise Stopped(f"{receiver(place)}: {answer.said}; {place.advice(answer.said)}", perhaps=perhaps)
            if answer.outcome != LATER:
                account.repeated += perhaps and answer.outcome == ACCEPTED
                return answer
            self._patience_s -= time.monotonic() - began
            if self._patience_s <= 0 or answer.wait_s > self._patience_s:
                raise Stopped(f"{receiver(place)}: {answer.said}; {place.advice(answer.said)}", perhaps=perhaps)
            self._screen.show(f"{receiver(place)}: {answer.said}; trying again")
            # Many who wait for the same receiver are not to come at the same time.
            pause = max(answer.wait_s, min(wait * random.uniform(0.5, 1.0), self._patience_s))
            time.sleep(pause)
            self._patience_s -= pause
            wait = min(2 * wait, _LONGEST_WAIT_S)
