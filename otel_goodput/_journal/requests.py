"""Requests of a command to a living job, through the run's folder, and the answers of its processes.

A command adds its request to the file of requests; each process looks there once a second, from a background thread,
carries out what is meant for it, once, and answers in a file of its own. Nothing listens on a port. Who can write to
the folder, which is its owner alone, can do no more by a request than its kind does: parameters are bounded by whoever
carries it out.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from otel_goodput._accounting.codec import COUNT, NUMBER, Each, Row, Text
from otel_goodput._journal.mirror import spool
from otel_goodput._journal.rundir import ANSWERS, MOST, REQUESTS, ListedRun, RunDirectory, runs
from otel_goodput._journal.sidecars import FIGURE, SCALAR, WORDS, Members, Named, Scalar, Sidecar, kept
from otel_goodput._runtime import files
from otel_goodput._runtime.guard import contain
from otel_goodput._text.redact import encodable, shown, without_credentials
from otel_goodput.errors import JournalError

LOOK_S: Final = 1.0  # from one look at the file to the next
HELD: Final = 16  # requests in the file, and answers of a process: the latest
REMEMBERED: Final = 64  # ids of requests that a process does not carry out again
VALID_NS: Final = 3600 * 10**9  # an older request is not carried out; clocks of machines may differ by much less
TEXT: Final = 2000  # characters of an answer

TAKEN: Final = "taken"  # it is being carried out
DONE: Final = "done"
REFUSED: Final = "refused"  # it is not carried out, for the reason in the text


class Request(NamedTuple):
    """What a command asks of processes of an attempt.

    Attributes:
        id: tells it from others.
        kind: what is asked, such as ``profile``.
        at: when it was made, ns since the epoch by the clock of the command.
        attempt: only processes in this attempt, counted from 0, carry it out.
        processes: their indices; empty: all.
        parameters: what the kind needs.
    """

    id: str
    kind: str
    at: int
    attempt: int
    processes: tuple[int, ...] = ()
    parameters: Mapping[str, Any] = {}

    def concerns(self, attempt: int, process: int) -> bool:
        return self.attempt == attempt and (not self.processes or process in self.processes)


class Answer(NamedTuple):
    """What a process answered: ``taken``, ``done`` or ``refused``, when (ns), a text, and the name of a file.

    The file is in the folder of the journal; the name is empty if there is none.
    """

    id: str
    state: str
    at: int
    text: str = ""
    file: str = ""


def _request(**members: Any) -> Request:
    return Request(**{**members, "processes": tuple(members["processes"])})


_NAME: Final = Text()
_REQUEST: Final = Members(
    {
        "id": WORDS,
        "kind": WORDS,
        "at": FIGURE,
        "attempt": Scalar(int),
        "processes": Each(COUNT, most=MOST),
        "parameters": Named(SCALAR),
    },
    _request,
)
_REQUESTS: Final = Sidecar("requests to a job", Members({"requests": Each(_REQUEST, most=HELD)}), REQUESTS)
_ANSWER: Final = Row(_NAME, Text(TAKEN, DONE, REFUSED), NUMBER, _NAME, _NAME, make=Answer._make)
_ANSWERS: Final = Sidecar("answers of a process", Members({"answers": Each(_ANSWER, most=HELD)}), ANSWERS)


# --- of a command -----------------------------------------------------------------------------------------------------


def make(kind: str, attempt: int, processes: Collection[int] = (), **parameters: str | float | bool | None) -> Request:
    """Return a request, which :func:`post` makes known."""
    return Request(secrets.token_hex(8), kind, time.time_ns(), attempt, tuple(sorted(processes)), parameters)


def post(run: RunDirectory, request: Request) -> None:
    """Make a request known to the job, if it is not yet. Raises OSError: the folder cannot be written.

    Two commands may write at once, and one request be lost. So a command that waits calls this again and again.
    """
    present = _read(run)
    if any(one.id == request.id for one in present):
        return
    made = [one._asdict() for one in (*present, request)[-HELD:]]
    files.write_privately(run.requests_path, _REQUESTS.encode(requests=made), given=True)


def answers(run: RunDirectory, request: Request) -> dict[int, Answer]:
    """Return the answers so far, by process. Files that cannot be read count as none."""
    given: dict[int, Answer] = {}
    for process in run.answering(request.attempt):
        if request.concerns(request.attempt, process):
            with suppress(OSError, ValueError):
                read = _ANSWERS.read(run.file("answers", request.attempt, process))["answers"]
                given.update((process, one) for one in read if one.id == request.id)
    return given


def local_runs(place: str) -> list[RunDirectory]:
    """Return the runs in a folder, or at a URL, that processes of this machine write or wrote.

    A job whose journal is at a URL reads requests from its local copy of the folder, on the machine of each process.
    Raises JournalError if there is none here, or no run.
    """
    if "://" not in place:
        return [*runs(Path(place))]
    url = place.rstrip("/")
    folder, _, name = url.rpartition("/")
    for copy in (spool(url), spool(folder) / name):
        if files.is_folder(copy):
            return [*runs(copy)]
    raise JournalError(
        f"no process of this user on this machine writes runs to {without_credentials(place)}. Requests reach a job "
        "through its folder; of one at a URL, they reach the processes of the machine on which the command runs: run "
        "it there, as the user of the job and with the same TMPDIR"
    )


def living(run: RunDirectory) -> tuple[int, list[int]]:
    """Return the latest attempt, counted from 0, and which processes may be alive in it, sorted.

    One whose lock cannot be seen from here counts as alive. Raises JournalError if none is.
    """
    listed = ListedRun(run.path)
    latest = {process: attempts[-1] for process in listed.processes() if (attempts := listed.attempts(process))}
    attempt = max(latest.values(), default=-1)
    writing = [process for process, last in sorted(latest.items()) if last == attempt]
    alive = [process for process in writing if listed.writing(attempt, process) is not False]
    if not alive:
        raise JournalError(f"run {shown(run.called())} is not running: no process of it is alive")
    return attempt, alive


def _read(run: RunDirectory) -> list[Request]:
    """Return the requests in the file; none if it is missing or cannot be read."""
    with suppress(OSError, ValueError):
        read: list[Request] = _REQUESTS.read(run.requests_path)["requests"]
        return read
    return []


# --- of a process -----------------------------------------------------------------------------------------------------


class Respond(Protocol):
    """Answers a request. It may be called from any thread, and several times: the last answer counts."""

    def __call__(self, state: str, text: str = "", file: str = "") -> None: ...


Carry = Callable[[Request, Respond], object]


class Inbox:
    """Carries out requests to this process. :meth:`look` is called often, from a background thread.

    Args:
        place: returns the run and the attempt, counted from 0; no run while they are not settled, or if the journal is
            in memory only.
        process: index of this process.
        clock: ns since the epoch.
    """

    def __init__(self, place: Callable[[], tuple[RunDirectory | None, int]], process: int, clock: Callable[[], int]):
        self._place, self._process, self._clock = place, process, clock
        self._carry: dict[str, Carry] = {}
        self._looked = 0.0
        self._version = (0, 0, 0)
        self._taken: dict[str, None] = {}  # ids, the oldest first
        self._answers: dict[str, Answer] = {}
        self._answering = threading.Lock()

    def on(self, kind: str, carry: Carry) -> None:
        """Carry out requests of a `kind` with `carry`, which must not take long: what does needs a thread of its own.

        If it raises an exception, the request is refused with that.
        """
        self._carry[kind] = carry

    def look(self) -> None:
        """Carry out what is new, if the last look is long enough ago. Costs one stat; errors are contained."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        run, attempt = self._place()
        if run is None:
            return
        try:
            about = run.requests_path.lstat()
        except OSError:
            return
        version = (about.st_ino, about.st_size, about.st_mtime_ns)
        if version == self._version:
            return
        self._version = version
        for request in _read(run):
            if request.id in self._taken or not request.concerns(attempt, self._process):
                continue
            self._taken[request.id] = None
            if len(self._taken) > REMEMBERED:
                del self._taken[next(iter(self._taken))]
            if abs(self._clock() - request.at) < VALID_NS:
                self._carry_out(request)

    def _carry_out(self, request: Request) -> None:
        def respond(state: str, text: str = "", file: str = "") -> None:
            self._answer(Answer(request.id, state, self._clock(), encodable(text)[:TEXT], file))

        carry = self._carry.get(request.kind)
        if carry is None:
            respond(REFUSED, f"this process does not know requests of the kind {shown(request.kind)[:100]}")
            return
        try:
            carry(request, respond)
        except Exception as error:
            respond(REFUSED, shown(str(error)) or type(error).__name__)
            contain(f"request {request.kind}", error)

    def _answer(self, answer: Answer) -> None:
        """Write an answer beside the others. An error is reported once."""
        run, attempt = self._place()
        if run is None:
            return
        with self._answering:
            self._answers[answer.id] = answer
            while len(self._answers) > HELD:
                del self._answers[next(iter(self._answers))]
            owner = {"attempt": attempt, "process": self._process}
            data = _ANSWERS.encode(**owner, answers=list(self._answers.values()))
            kept(run.file("answers", attempt, self._process), data, "answers", "a request cannot be answered: %s")
