"""Files in order, requests one by one, and what became of them."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_goodput.doctor.endpoints import Endpoint, endpoint
from otel_goodput.send.destination import ACCEPTED, CLOSED, LATER, Answer, Destination, open_destination, receiver
from otel_goodput.send.lines import METRICS, TRACES, Request, left, read, whole_lines
from otel_goodput.send.progress import Progress, alone
from otel_goodput.send.screen import Screen

_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 10.0
_LAST_TRY_S: Final = 0.5


@dataclass
class Account:
    """What became of the lines of a file.

    `before` were done with earlier; `repeated` requests may be there twice, `rejected` spans or points of accepted
    requests were not taken; `torn_bytes` follow the last whole line.
    """

    file: str
    receiver: str
    before: int = 0
    sent: int = 0
    spans: int = 0
    points: int = 0
    refused: int = 0
    unreadable: int = 0
    rejected: int = 0
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

    def __str__(self) -> str:
        counts = (
            (self.refused, "refused"),
            (self.unreadable, "unreadable"),
            (self.rejected, "spans or points not taken"),
            (self.repeated, "perhaps there twice"),
            (self.left, "left"),
            (self.torn_bytes, "bytes of an unfinished last line"),
        )
        kinds = [f"{count} {what}" for count, what in ((self.spans, "spans"), (self.points, "points")) if count]
        inside = f" ({', '.join(kinds)})" if kinds else ""
        return ", ".join([f"{self.sent} requests{inside}", *(f"{count} {what}" for count, what in counts if count)])


class Stopped(Exception):
    """No more can be sent now. `perhaps`: the request at hand may have been accepted."""

    def __init__(self, reason: str, *, perhaps: bool) -> None:
        super().__init__(reason)
        self.perhaps = perhaps


class Sending:
    """Sends files by the standard variables in `environ`.

    Args:
        patience_s: seconds in all for requests that fail and waits between them.
        dry: send nothing and write nothing.
        again: a dry look at each file from its beginning.

    Raises:
        ConfigurationError: an endpoint is none.
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

    def forget(self, path: Path, signal: str) -> None:
        """The file is to be sent from its beginning, also if we are cut off before. Raises GoodputError, OSError."""
        if not self._dry:
            with alone(path):
                Progress(path, self.receiver(signal), again=True).write(0, 0, doubt=False)

    def receiver(self, signal: str) -> str:
        return receiver(self._places[signal])

    def file(self, path: Path, signal: str, account: Account) -> None:
        """Send what is left of a file of `signal`.

        Raises:
            Stopped: the receiver takes no more; what was taken is remembered.
            GoodputError: another process is sending it, or what is remembered of it does not fit.
            OSError: it cannot be read, or written beside.
        """
        if self._dry:
            self._lines(self._progress(path, signal), account)
            return
        with alone(path):
            progress = self._progress(path, signal)
            try:
                self._lines(progress, account)
            except Stopped as stopped:
                progress.write(progress.offset, progress.lines, doubt=stopped.perhaps)
                raise
            if progress.doubt:
                progress.write(progress.offset, progress.lines, doubt=False)

    def rest(self, path: Path, signal: str) -> int:
        """How many lines of the file are left to send. Raises GoodputError, OSError."""
        return left(path, Progress(path, self.receiver(signal)).offset)

    def _progress(self, path: Path, signal: str) -> Progress:
        progress = Progress(path, self.receiver(signal), again=self._again and self._dry)
        if progress.replaced:
            self._screen.tell(f"{path}: another file than the one that was sent before; from its beginning")
        return progress

    def _lines(self, progress: Progress, account: Account) -> None:
        path, before = progress.path, progress.lines
        account.before = before
        end = progress.offset
        for line in whole_lines(path, end, before):
            if line.number == before + 1:
                self._begin(progress, account)
            try:
                request = read(line.data) if line.data.strip() else None
            except ValueError as error:
                self._screen.complain(f"{path}:{line.number}: {error}, left out")
                account.unreadable += 1
            else:
                if request is not None:
                    answer = Answer(ACCEPTED) if self._dry else self._deliver(request, account)
                    self._book(f"{path}:{line.number}", request, answer, account)
            end = line.end
            if not self._dry:
                progress.write(end, line.number, doubt=True)
            self._screen.show(f"{path.name}: {end / 2**20:.1f} of {path.stat().st_size / 2**20:.1f} MiB, {account}")
        account.torn_bytes = max(path.stat().st_size - end, 0)

    def _begin(self, progress: Progress, account: Account) -> None:
        """Whoever finds this doubt later knows that we did not come to an end."""
        if progress.doubt:
            self._screen.tell(f"{progress.path}: an earlier send was cut off; one request may be there twice")
            account.repeated += 1
        if not self._dry:
            progress.write(progress.offset, progress.lines, doubt=True)

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
