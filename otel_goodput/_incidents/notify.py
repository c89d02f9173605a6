"""Reports incidents straight from the job, to Slack, by mail and to a hundred other services, with ``apprise``.

An incident is reported when it opens and when it ends, by the process that makes the account of the job, on a thread of
its own. An address is a secret: it is in no message, whoever logs it.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Full, Queue
from typing import Any, Final, NamedTuple

from otel_goodput._accounting.incidents import Incident
from otel_goodput._journal.incidents import IncidentSheet
from otel_goodput._runtime.guard import containing, report_once, started
from otel_goodput._runtime.installation import install_command
from otel_goodput._settings.config import Config
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration, format_moment
from otel_goodput._text.redact import address_secrets, printable, redacting_logger, without, without_address
from otel_goodput.reports.incidents import sentence, to_json
from otel_goodput.semconv import IncidentKind

logger = redacting_logger("otel_goodput")

PACKAGE: Final = "apprise"
MOST_WAITING: Final = 16  # notifications that wait to be sent
MOST_AN_HOUR: Final = 12  # incidents that are reported in an hour, with their ends
PAUSES_S: Final = (1.0, 5.0)  # before the second and the third try
SETTLE_S: Final = 10.0  # from the opening of a slowdown to the message
LONGEST: Final = 1000  # characters of a line
# Loggers that write addresses: silent on the thread that sends.
_LOGGERS: Final = (PACKAGE, "requests", "urllib3.connectionpool", "urllib3.util.retry", "oauthlib", "requests_oauthlib")

# What each kind of an incident is called in a title.
_TITLES: Final[Mapping[str, str]] = {
    IncidentKind.HANG: "training hangs",
    IncidentKind.SLOWDOWN: "training has become slower",
    IncidentKind.RESTART_LOOP: "it restarts without progress",
}
# What to look at then, as subcommands.
_LOOK: Final[Mapping[str, tuple[str, ...]]] = {
    IncidentKind.HANG: ("stacks", "report", "serve"),
    IncidentKind.SLOWDOWN: ("report", "profile", "serve"),
    IncidentKind.RESTART_LOOP: ("report", "serve"),
}


class Subject(NamedTuple):
    """Whose incidents are reported: a run of a job, its attempt from 1, and where its journal is."""

    job_name: str
    run_id: str
    attempt: int = 1
    folder: str = ""


class Message(NamedTuple):
    """A notification: a title, a text, and apprise's name of what kind it is."""

    title: str
    body: str
    kind: str


def opening(incident: Incident, subject: Subject) -> Message:
    """Return the text about an incident that has opened."""
    lines = [f"Since {format_moment(incident.began / NS)}: {_sentence(incident, subject)}."]
    lines += [f"- {text}" for text in incident.evidence]
    lines.append(f"Lost so far: {format_duration(incident.cost / NS)}, in attempt {subject.attempt}.")
    if subject.folder:
        lines += ["Look:", *(f"  otel-goodput {command} {subject.folder}" for command in _LOOK[incident.kind])]
    return _message(_TITLES[incident.kind], lines, subject, "failure")


def closing(incident: Incident, subject: Subject, *, with_job: bool = False) -> Message:
    """Return the text about an incident that is over; `with_job`: because the job is."""
    ended = incident.began if incident.ended is None else incident.ended
    length = format_duration((ended - incident.began) / NS)
    lines = [
        (
            f"It began at {format_moment(incident.began / NS)} and {'ended with the job' if with_job else 'is over'} "
            f"after {length}: {_sentence(incident, subject)}."
        ),
        f"Lost: {format_duration(incident.cost / NS)}.",
    ]
    return _message(f"over: {_TITLES[incident.kind]}", lines, subject, "info" if with_job else "success")


def trial(subject: Subject) -> Message:
    """Return the text with which a user sees whether notifications arrive."""
    return _message("this is a test", ["Incidents of this job will be reported here."], subject, "info")


def _sentence(incident: Incident, subject: Subject) -> str:
    return sentence(to_json(incident, subject.attempt - 1))


def _message(title: str, lines: Sequence[str], subject: Subject, kind: str) -> Message:
    whose = subject.job_name if subject.run_id in ("", subject.job_name) else f"{subject.job_name}, {subject.run_id}"
    shown = (printable(without((), line))[:LONGEST] for line in lines)
    return Message(printable(without((), f"{whose}: {title}"))[:LONGEST], "\n".join(shown), kind)


def wanted(only: Iterable[str], *known: Mapping[str, Any]) -> bool:
    """Return whether a run is to be reported: each ``key`` or ``key=value`` of `only` is in one of the `known`."""
    for one in only:
        key, equals, value = (part.strip() for part in one.partition("="))
        values = [str(given[key]) for given in known if key in given]
        if not values or (equals and value not in values):
            return False
    return True


def installed() -> bool:
    """Return whether apprise can be imported, without doing it."""
    try:
        return importlib.util.find_spec(PACKAGE) is not None
    except (ImportError, ValueError):
        return False


def missing() -> str:
    """Return what to say if apprise is not installed."""
    return (
        f"incidents are not reported: {Settings.notify.variable} needs the package {PACKAGE}, which is not installed; "
        f"{install_command('notify')}"
    )


class Address:
    """One URL to notify.

    Attributes:
        shown: what may be shown of it.
        hidden: texts that no message may contain.
    """

    def __init__(self, url: str) -> None:
        self.shown = without_address(url)
        self.hidden = sorted(address_secrets(url), key=len, reverse=True)
        self._url = url
        self._service: Any = None

    def understood(self) -> bool:
        """Whether apprise knows what to do with it. Takes some 0.3 s the first time. Raises ImportError."""
        if self._service is None:
            with _own_messages(self.hidden):
                import apprise

                # Not added to an Apprise: that sends from a pool, for whose threads the interpreter waits at its end.
                asset = apprise.AppriseAsset(app_id="otel_goodput")
                self._service = apprise.Apprise.instantiate(self._url, asset=asset) or False
        return bool(self._service)

    def send(self, message: Message) -> str:
        """Send a message; return why that failed, without secrets, or "". Does not raise."""
        with _own_messages(self.hidden) as warnings:
            try:
                if not self.understood():
                    return "the URL is not understood"
                if self._service.notify(body=message.body, title=message.title, notify_type=message.kind):
                    return ""
            except Exception as error:  # code of other packages, which may quote the address
                return without(self.hidden, f"{type(error).__name__}: {error}")
        return without(self.hidden, "; ".join(warnings[-2:])) or "it was refused"


@contextmanager
def _own_messages(hidden: Sequence[str]) -> Iterator[list[str]]:
    """Keep what other packages log on this thread out of all logs; yield their warnings, without what is `hidden`."""
    thread, warnings = threading.get_ident(), list[str]()

    def others(record: logging.LogRecord) -> bool:  # filters run on the thread that logs
        if threading.get_ident() != thread:
            return True
        if record.levelno >= logging.WARNING:
            warnings.append(without(hidden, record.getMessage()))
        return False

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for one in loggers:
        one.addFilter(others)
    try:
        yield warnings
    finally:
        for one in loggers:
            one.removeFilter(others)


class Note(NamedTuple):
    """A message to be made and sent not before `due` (s, monotonic)."""

    make: Callable[[], Message]
    due: float


class Notifier:
    """Reports incidents to all addresses, each once when it opens and once when it has ended. Nothing here raises.

    Args:
        config: says to whom, and of which runs.
        subject: returns whose incidents they are.
        sheet: has the incidents of this attempt, as they are known now, and of earlier ones.
        known: returns the attributes of the run, which ``notify_only`` may name.
        settle_s: how long the opening of a slowdown is held back, s: a profile finds its line meanwhile.
        pauses_s: how long to wait before another try, s; so often it is tried again.
    """

    def __init__(
        self,
        config: Config,
        subject: Callable[[], Subject],
        sheet: IncidentSheet,
        known: Callable[[], Iterable[Mapping[str, Any]]] = tuple,
        *,
        settle_s: float = SETTLE_S,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._subject, self._sheet, self._known = subject, sheet, known
        self._only = config.notify_only or ()
        self._addresses = [Address(url) for url in config.notify or ()]
        self._settle_s, self._pauses_s = settle_s, pauses_s
        self._reported: set[int] = set()  # numbers of incidents that are open
        self._recent: deque[float] = deque(maxlen=MOST_AN_HOUR)
        self._waiting = Queue["Note | None"](MOST_WAITING)
        self._closing = threading.Event()
        self._idle = threading.Condition()
        self._unsent = 0
        self._thread: threading.Thread | None = None
        self.ending = False  # the job is: what ends now ends with it

    def begin(self) -> bool:
        """Start the thread, which first looks whether the addresses are understood; return whether there is one.

        It begins by itself with the first incident: only the leader needs to know before whether it will work.
        """
        if self._thread is not None or not self._addresses or self._closing.is_set():
            return self._thread is not None
        if not installed():
            report_once("notify", "%s", missing())
            return False
        thread = threading.Thread(target=self._work, name="goodput-notify", daemon=True)
        if started(thread, "incidents are not reported"):
            self._thread = thread
        return self._thread is not None

    def ended(self, incident: Incident) -> None:
        """Report that an incident has ended, if its opening was reported. Returns at once."""
        if incident.number not in self._reported:
            return
        self._reported.discard(incident.number)
        with_job = self.ending
        if not (with_job and incident.kind == IncidentKind.RESTART_LOOP):  # that goes on
            self._put(lambda: closing(incident, self._subject(), with_job=with_job), 0.0)

    def opened(self, incident: Incident) -> None:
        """Report that an incident has opened. Returns at once."""
        if not wanted(self._only, *self._known()) or not self.begin():
            return
        if self._reported_before(incident):
            self._reported.add(incident.number)
            return
        now = time.monotonic()
        if len(self._recent) == MOST_AN_HOUR and now - self._recent[0] < 3600:
            text = "more than %d incidents in an hour: further ones are recorded, but not reported"
            report_once("notify often", text, MOST_AN_HOUR)
            return

        def make() -> Message:
            latest = (one for one in self._sheet.all() if one.number == incident.number)
            return opening(next(latest, incident)._replace(ended=None), self._subject())

        if self._put(make, self._settle_s if incident.kind == IncidentKind.SLOWDOWN else 0.0):
            self._recent.append(now)
            self._reported.add(incident.number)

    def _reported_before(self, incident: Incident) -> bool:
        """Whether an earlier attempt has noticed the same: a restart loop goes on over attempts."""
        if incident.kind != IncidentKind.RESTART_LOOP:
            return False
        attempt = self._subject().attempt - 1
        return any(
            one.kind == incident.kind and one.began == incident.began
            for earlier, one in self._sheet.of_run(())
            if earlier != attempt
        )

    def shutdown(self, seconds: float) -> bool:
        """Send what waits, for so many `seconds` at most; return whether all of it is sent."""
        self._closing.set()  # no more pauses
        with self._idle:
            done = self._idle.wait_for(lambda: not self._unsent, max(0.0, seconds))
        with suppress(Full):  # then the thread is stuck, and ends with the process
            self._waiting.put_nowait(None)
        return done

    def _put(self, make: Callable[[], Message], delay: float) -> bool:
        if self._closing.is_set():
            return False
        with self._idle:
            self._unsent += 1
        try:
            self._waiting.put_nowait(Note(make, time.monotonic() + delay))
        except Full:
            self._done()
            report_once("notify queue", "%d notifications wait to be sent: another one is left out", MOST_WAITING)
            return False
        return True

    def _done(self) -> None:
        with self._idle:
            self._unsent -= 1
            self._idle.notify_all()

    def _work(self) -> None:
        self._look()
        while True:
            note = self._waiting.get()
            if note is None:
                return
            self._closing.wait(max(0.0, note.due - time.monotonic()))
            with containing("notifications"):
                message = note.make()
                for address in self._addresses:
                    self._send(address, message)
            self._done()

    def _look(self) -> None:
        for address in self._addresses:
            try:
                why = "" if address.understood() else f"{PACKAGE} does not understand the URL"
            except Exception as error:
                why = without(address.hidden, f"{type(error).__name__}: {error}")
            if why:
                report_once(f"notify {address.shown}", "incidents are not reported to %s: %s", address.shown, why)

    def _send(self, address: Address, message: Message) -> None:
        why = address.send(message)
        for pause in self._pauses_s if why else ():
            self._closing.wait(pause)
            why = address.send(message)
            if not why:
                return
        if why:
            text = "an incident could not be reported to %s: %s"
            report_once(f"notify to {address.shown}", text, address.shown, why)
