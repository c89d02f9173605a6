"""The page's document: a view of a run as one container of JSON and columns (``docs/viewer.md`` says what is in it).

All times are ns from `origin_ns`, the run's first job start. Text from outside is plain text, and shown as such. The
container::

    b"OGV1"  length of the head (u32, little-endian)  the head: JSON, UTF-8  the columns, one after the other

In the head a column is ``{"at": offset after the head, "length": bytes, "type": T}``: ``int`` holds zigzag LEB128
varints of successive differences (the first against 0), ``u8`` raw bytes, ``id`` raw span ids of 8 bytes, big-endian.
Columns of equal length make a table: ``{"rows": n, "columns": {name: column}}``.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from otel_goodput._accounting import rules
from otel_goodput._accounting.events import NO_STEP
from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.overview import NOT_KNOWN, Overview, Spread
from otel_goodput._journal.usage import Usage
from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput._text.redact import secrets, without, without_secrets
from otel_goodput._viewer import incidents
from otel_goodput.reports import own_times, ranks_text, text
from otel_goodput.reports.detail import FAILED, IN_TRACE, NONBLOCKING, Detail, Phase, Step
from otel_goodput.reports.excerpt import News
from otel_goodput.reports.exported import Exported
from otel_goodput.reports.report import Report, correction_fields
from otel_goodput.reports.run_view import Attempt, Process, ProcessSteps, RunView
from otel_goodput.semconv import CATEGORIES, GCP_PROJECT_ID, PHASES, THROTTLE_REASONS, Category
from otel_goodput.version import __version__

MAGIC: Final = b"OGV1"
LENGTH: Final = 4
_PAIR: Final = 1 << 14  # two bytes of a varint at once
_FINAL: Final = [bytes((low,)) if low < 128 else bytes((low & 127 | 128, low >> 7)) for low in range(_PAIR)]
_MORE: Final = [bytes((low & 127 | 128, low >> 7 | 128)) for low in range(_PAIR)]

Column = dict[str, Any]
Table = dict[str, Any]


def packed(values: Iterable[int]) -> bytes:
    """Return integers of any size as zigzag LEB128 varints of their successive differences."""
    pieces: list[bytes] = []
    append, final, more = pieces.append, _FINAL, _MORE
    last = 0
    for value in values:
        step = value - last
        last = value
        step = step << 1 if step >= 0 else ~(step << 1)
        while step >= _PAIR:
            append(more[step & 16383])
            step >>= 14
        append(final[step])
    return b"".join(pieces)


class Columns:
    """Collects columns; each method returns what the head says of one."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._length = 0

    def _add(self, data: bytes, kind: str) -> Column:
        at = self._length
        self._pieces.append(data)
        self._length += len(data)
        return {"at": at, "length": len(data), "type": kind}

    def integers(self, values: Iterable[int]) -> Column:
        return self._add(packed(values), "int")

    def raw(self, values: bytes) -> Column:
        """Add numbers from 0 to 255."""
        return self._add(values, "u8")

    def ids(self, keys: Sequence[int]) -> Column:
        """Add span ids (unsigned integers of 64 bits)."""
        return self._add(b"".join(key.to_bytes(8, "big") for key in keys), "id")

    def table(self, names: Sequence[str], rows: Iterable[Sequence[int]]) -> Table:
        """Add a table of integers, given row by row."""
        columns = list(zip(*rows, strict=True)) or [()] * len(names)
        return self.columns(dict(zip(names, columns, strict=True)))

    def columns(self, columns: Mapping[str, Sequence[int]]) -> Table:
        """Add a table of integers, given column by column; all have the same length."""
        rows = len(next(iter(columns.values()), ()))
        if any(len(values) != rows for values in columns.values()):
            raise ValueError("the columns of a table differ in length")
        return {"rows": rows, "columns": {name: self.integers(values) for name, values in columns.items()}}

    def container(self, head: Mapping[str, Any]) -> bytes:
        """Return the document: `head` and all columns. Raises ValueError if JSON cannot express a number in `head`."""
        text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
        return b"".join((MAGIC, len(text).to_bytes(LENGTH, "little"), text, *self._pieces))


FORMAT: Final = 1

_ELSEWHERE: Final = "configurations"  # of a report: the attempts have it, as their facts
_SHARES: Final = 255
_PROFILES: Final = "plugins/profile"  # below the folder that profiles go to
_STEP_BINS: Final = (
    "first", "last", "begin", "count", "lost", "net_min", "net_median", "net_max", "outside_min", "outside_median",
    "outside_max", "device_min", "device_median", "device_max",
)  # fmt: skip
_STEPS: Final = (
    "attempt", "number", "start", "wall", "net", "device_begin", "device_end", "fate", "clock", "flags",
    "given",
)  # fmt: skip
_PHASES: Final = ("attempt", "phase", "name", "start", "wall", "step", "flags", "parent")
_LOW: Final = (1 << 64) - 1
_OVER_OTLP: Final = "gcp-otlp"
_GOOGLE: Final = ("gcp", _OVER_OTLP)  # exporters that send spans to Cloud Trace
_EXPLORER: Final = "https://console.cloud.google.com/traces/explorer;traceId={trace};spanId={span}?project="
_PROJECT: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.:")  # letters of a project's id


class Redaction:
    """Hides credentials in texts, and leaves all other texts as they are, whatever letters they have."""

    def __init__(self) -> None:
        self._hidden = secrets(os.environ)

    def __call__(self, text: str) -> str:
        return without(self._hidden, text)

    def all(self, data: Any) -> Any:
        if isinstance(data, str):
            return self(data)
        if isinstance(data, Mapping):
            return {self(str(name)): self.all(value) for name, value in data.items()}
        if isinstance(data, (list, tuple)):
            return [self.all(value) for value in data]
        return data

    def attributes(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return attributes without secrets, which the name of an attribute may tell, too."""
        return {self(name): without_secrets(name, value, self._hidden) for name, value in attributes.items()}


def document(
    view: RunView, *, live: bool = False, server: Mapping[str, Any] | None = None, partial: bool = False
) -> bytes:
    """Return the document of a run, not compressed.

    Args:
        view: the run.
        live: the page will ask for more.
        server: what the page says of its server: ``port``, and after how many seconds without a reader it stops
            (``idle_s``, None: never). None for a page from a file.
        partial: the rest is being read, and the page will have it later.
    """
    writer = _Writer(view)
    return writer.container(writer.whole(live, server, partial))


def window(view: RunView, detail: Detail, begin: int, until: int, *, of_leader: bool = False) -> bytes:
    """Return the spans of a part of a run in a container: their tables, and ``begin`` and ``until``.

    `detail`, in place of that of the `view` or of its leader, is what happened from `begin` to `until`, ns since the
    epoch.
    """
    about = view.leader if of_leader and view.leader is not None else view
    return (writer := _Writer(view)).container(writer.part(replace(about, detail=detail, left_out=0), begin, until))


def tail(view: RunView, news: News) -> bytes:
    """Return what is new of a run, in a container as that of a window; without owners if there was too much of it."""
    overview = replace(view.overview, names=tuple(news.detail.names))
    view = replace(view, detail=news.detail, left_out=int(news.cut), overview=overview)
    return (writer := _Writer(view)).container(writer.part(view, news.begin, news.until))


def origin(view: RunView) -> int:
    """Return the moment that the document of a run counts from, ns since the epoch."""
    started = view.report.totals.started_at
    return view.overview.begin or (view.at if started is None else started)


def figures(report: Report, without: Collection[str] = (), redacted: Redaction | None = None) -> dict[str, Any]:
    """Return what the document says of a report, less its keys in `without`: what changes while a run is live.

    Callers that come every second keep what is `redacted` with, which remembers texts.
    """
    left_out = {*without, _ELSEWHERE}
    answer: dict[str, Any] = {name: value for name, value in report.to_json().items() if name not in left_out}
    if (answer.get("ranks") or {}).get("own"):  # the document has them as tables
        answer["ranks"] = {**answer["ranks"], "own": {**answer["ranks"]["own"], "windows": []}}
    shown: dict[str, Any] = (redacted or Redaction()).all(answer)
    losses = [one for one in text.sources(shown["seconds"]) if one[0] != Category.PRODUCTIVE]
    known = losses and shown["elapsed_s"] and shown["goodput"] is not None
    return {
        "report": shown,
        "headline": text.headline(shown),
        "verdict": text.sentence(shown) if shown["elapsed_s"] else "No job has started yet.",
        "of_ranks": [line.strip() for line in ranks_text.verdict(shown)] if shown["elapsed_s"] else [],
        "incident_texts": incidents.sentences(shown),
        "own_texts": own_times.sentences(shown),
        "own_latest": None if report.ranks is None else incidents.own_latest(report.ranks.own),
        "verdict_source": {"category": losses[0][0], "name": losses[0][1]} if known else None,
    }


class _Writer:
    def __init__(self, view: RunView) -> None:
        self._view = view
        self._origin = origin(view)
        self._columns = Columns()
        self._redacted = Redaction()
        self._names: dict[str, int] = {"": 0}
        names = dict.fromkeys((*view.overview.names, *(() if view.leader is None else view.leader.overview.names)))
        self._custom: dict[str, int] = {name: rules.FIXED + at for at, name in enumerate(names)}

    def container(self, head: dict[str, Any]) -> bytes:
        """Return `head` with its columns, and with the names that have a number in them."""
        head["categories"] = [{"name": name, "custom": ""} for name in rules.NAMES] + [
            {"name": Category.CUSTOM, "custom": self._redacted(name)} for name in self._custom
        ]
        head["names"] = [self._redacted(name) for name in self._names]
        return self._columns.container(head)

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def whole(self, live: bool, server: Mapping[str, Any] | None, partial: bool) -> dict[str, Any]:
        view, leader, folder = self._view, self._view.leader, self._view.run.folder.path
        reached = max(max(one.at, one.detail.reached) for one in (view, leader or view))
        own = self._account_of(view, view.overall or view.report)
        return {
            "format": FORMAT,
            "version": __version__,
            "made_at": time.time(),
            "live": live,
            "server": server,
            "partial": partial,
            "origin_ns": str(self._origin),
            "end": max(0, reached - self._origin) if view.overview.begin else 0,
            **own,
            "leader": None if leader is None else self._account_of(leader, leader.report, ("processes",)),
            "job": None if view.job is None else self._job(view.job),
            "phase_names": list(PHASES),
            "processes": [self._process(one) for one in view.processes],
            "process_steps": self._columns.table(
                ("process", *ProcessSteps._fields),
                [
                    (process.index, first, last, self._at(begin), *rest)
                    for process in view.processes
                    for first, last, begin, *rest in process.steps
                ],
            ),
            "throttle_reasons": list(THROTTLE_REASONS),
            "usage": self._columns.table(
                ("process", "attempt", *Usage._fields),
                [
                    (one.process, one.attempt, self._at(usage.end), *usage[1:])
                    for one in view.usage
                    for usage in one.usages
                ],
            ),
            "machines": [
                {"process": one.process, "attempt": one.attempt, **one.machine._asdict()} for one in view.usage
            ],
            "traces": {
                # Of the latest attempt that sent spans to Cloud Trace; the run's folder if jax's profiler has written
                # there, for xprof and TensorBoard read it.
                "cloud_trace": next(filter(None, (cloud_trace(one.facts) for one in reversed(view.attempts))), None),
                "xprof": self._redacted(str(folder)) if files.is_folder(folder / _PROFILES) else None,
            },
            "standstills": self._redacted.all([] if partial else incidents.standstills(view.run)),
            "profiles": self._redacted.all([] if partial else incidents.profiles_of(view.run.folder)),
        }

    def _account_of(self, view: RunView, report: Report, without: Collection[str] = ()) -> dict[str, Any]:
        """Return what is about the time of the job, or of one process, with its `report`."""
        overview = view.overview
        return {
            **figures(report, without, self._redacted),
            "until": max(0, max(view.at, view.detail.reached) - self._origin) if overview.begin else 0,
            "attempts": [self._attempt(one, view) for one in view.attempts],
            "disruptions": self._disruptions(view),
            "bins": self._bins(overview),
            "step_bins": self._columns.table(_STEP_BINS, [self._step_bin(one) for one in overview.step_bins]),
            "histogram": self._columns.table(
                ("measure", "attempt", "fate", "bucket", "count"),
                [(*of, count) for of, count in sorted(overview.histogram.items())],
            ),
            "groups": [
                {
                    "phase": one.phase,
                    "name": self._number(one.name),
                    "background": one.background,
                    "count": one.count,
                    "sum_ns": one.total,
                    "min_ns": one.min,
                    "max_ns": one.max,
                    "failed": 0 if view.is_job_time(one.phase, background=one.background) else one.failed,
                }
                for one in overview.groups
                if not view.is_note(one.phase, background=one.background)
            ],
            **self._spans(view),
            "window_owners": self._owners(view) if view.left_out else None,
            "excluded": [[self._at(begin), self._at(end)] for begin, end in overview.excluded],
            "saves": self._columns.table(
                ("attempt", "step", "begin", "blocking_end", "durable_at", "failed"),
                [
                    (one.attempt, one.step, self._at(one.begin), self._at(one.end), self._at(one.durable), one.failed)
                    for one in overview.saves
                    # The time that saves take is in the events of a job without their numbers.
                    if view.leader is None or not one.failed or one.step != NO_STEP
                ],
            ),
            "at_risk": self._columns.table(("time", "ns"), [(self._at(at), held) for at, held in overview.at_risk]),
            "notices": [
                {"time": self._at(at), "reason": reason, "withdrawn": withdrawn}
                for at, reason, withdrawn in overview.notices
            ],
            "slices": [
                {"time": self._at(at), "active": active, "available": available, "total": total}
                for at, active, available, total in overview.slices
            ],
            "attributes": self._attributes(view.exported),
            "detail": {
                "complete": not view.left_out,
                "windows": [[self._at(begin), self._at(end)] for begin, end in view.windows],
                "spans": len(view.detail.steps) + len(view.detail.phases),
                "left_out": view.left_out,
                "text": view.text,
            },
        }

    def part(self, view: RunView, begin: int, until: int) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "origin_ns": str(self._origin),
            "begin": self._at(begin),
            "until": self._at(until),
            **self._spans(view),
        }

    def _at(self, moment: int) -> int:
        return moment if moment == NOT_KNOWN else moment - self._origin

    def _job(self, report: Report) -> dict[str, Any]:
        """Return what is known of the ranks of a job; without an account of their steps, with its leader's figures."""
        ranks = report.ranks
        assert ranks is not None
        waits, apart = ranks.costs.over_time, self._view.leader is None
        return {
            "ranks": ranks.ranks,
            "leader": figures(self._view.report, ("processes",), self._redacted) if apart else None,
            "waits": {
                "width": waits.width,
                **self._columns.table(
                    ("begin", "rank", "category", "ns"),
                    [
                        (self._at(number * waits.width), cause.rank, self._waited_for(cause), ns)
                        for number, held in waits.bins.items()
                        for cause, ns in sorted(held.items())
                    ],
                ),
            },
            "own": incidents.own_times(ranks.own, self._columns.table, self._at),
        }

    def _waited_for(self, cause: Cause) -> int:
        return self._number_of(rules.FIXED, (cause.name,)) if cause.category == rules.CUSTOM else cause.category

    def _number_of(self, category: int, names: Sequence[str]) -> int:
        """Return the number that a category has in the document; `names` are those of its account's custom phases."""
        if category < rules.FIXED:
            return category
        return self._custom.setdefault(names[category - rules.FIXED], rules.FIXED + len(self._custom))

    def _attempt(self, one: Attempt, view: RunView) -> dict[str, Any]:
        elapsed, known = one.elapsed, view.report.totals.run.known
        return {
            "number": one.number,
            "begin": self._at(one.begin),
            "end": self._at(one.end),
            "state": one.state,
            "seconds": self._seconds(one.partition, view.overview.names),
            "elapsed_s": elapsed / NS,
            "goodput": one.partition[rules.PRODUCTIVE] / elapsed if elapsed and known else None,
            "trace_id": one.trace_id,
            "facts": self._redacted.all(one.facts),
        }

    def _seconds(self, held: Mapping[int, int], names: Sequence[str]) -> dict[str, Any]:
        """Return time by category number as a report has it; of categories that have none, nothing."""
        seconds, custom = dict[str, Any](), dict[str, float]()
        for at, ns in sorted(held.items()):
            if at < rules.FIXED:
                seconds[CATEGORIES[at]] = ns / NS
            else:
                custom[self._redacted(names[at - rules.FIXED])] = ns / NS
        return seconds | ({Category.CUSTOM: custom} if custom else {})

    def _disruptions(self, view: RunView) -> list[dict[str, Any]]:
        disruptions = view.overview.disruptions
        remarks = correction_fields(disruptions, view.report.corrections)
        known = view.report.totals.run.known  # when steps were over
        return [
            {
                "time": self._at(one.time),
                "died_at": None if one.died == NOT_KNOWN else self._at(one.died),
                "attempt": one.attempt,
                "reason": one.reason,
                "recovery_ns": one.recovery,
                "wasted_ns": one.wasted,
                "from_step": one.from_step,
                "to_step": one.to_step,
                **self._redacted.all(more),
                "kept_step": one.kept_step,
                "first_step_ns": one.first_step if known else None,
                "regained_ns": one.regained if known else None,
            }
            for one, more in zip(disruptions, remarks, strict=True)
        ]

    def _process(self, one: Process) -> dict[str, Any]:
        pace, overview = one.pace, one.overview
        held = sum(map(Counter, () if overview is None else overview.bins), Counter[int]())
        elapsed = held.total()
        return {
            "index": one.index,
            "leader": one.index == 0,
            "host": self._redacted(one.host),
            "state": one.state,
            "last_step": one.last_step,
            "last_sign": self._at(one.last_sign) if one.last_sign else NOT_KNOWN,
            "attempts": one.attempts,
            "pace": None if pace is None else pace.to_json(),
            "facts": self._redacted.all(one.facts),
            "bins": None if overview is None or not overview.begin else self._shares(overview),
            "busy_share": held[rules.PRODUCTIVE] / elapsed if elapsed else None,
            "account": None if overview is None or not elapsed else self._account(held, overview),
            "problem": self._redacted(one.problem),
        }

    def _account(self, held: Mapping[int, int], overview: Overview) -> dict[str, Any]:
        """Return where the time of a process went: the fields of a report that tell it, and its closing sentence."""
        seconds, elapsed = self._seconds(held, overview.names), sum(held.values()) / NS
        known = self._view.report.totals.run.known
        goodput = seconds.get(Category.PRODUCTIVE, 0.0) / elapsed if known else None
        account = {"seconds": seconds, "elapsed_s": elapsed, "goodput": goodput}
        return {**account, "verdict": text.sentence(account)}

    def _shares(self, overview: Overview) -> dict[str, Any]:
        bins = self._columns_of(overview)
        whole, half = max(1, overview.width), overview.width // 2
        numbers, shares = [], bytearray()
        for category, values in bins.items():
            parts = [(_SHARES * value + half) // whole for value in values]
            shares += bytes(parts if max(parts, default=0) <= _SHARES else [min(_SHARES, part) for part in parts])
            numbers.append(self._number_of(category, overview.names))
        return {**self._grid(overview), "categories": numbers, "shares": self._columns.raw(bytes(shares))}

    def _bins(self, overview: Overview) -> dict[str, Any]:
        bins = self._columns_of(overview)
        numbers = {category: self._number_of(category, overview.names) for category in bins}
        values = self._columns.columns({str(numbers[category]): values for category, values in bins.items()})
        return {**self._grid(overview), "categories": list(numbers.values()), "values": values}

    def _grid(self, overview: Overview) -> dict[str, int]:
        begin = self._at(overview.begin) if overview.begin else 0
        return {"begin": begin, "width": overview.width, "count": len(overview.bins)}

    def _columns_of(self, overview: Overview) -> dict[int, list[int]]:
        held = sorted({category for one in overview.bins for category in one})
        return {category: [one.get(category, 0) for one in overview.bins] for category in held}

    def _step_bin(self, one: Any) -> tuple[int, ...]:
        unknown = Spread(NOT_KNOWN, NOT_KNOWN, NOT_KNOWN)
        spreads = [spread or unknown for spread in (one.net, one.outside, one.device)]
        numbers = [number for spread in spreads for number in spread]
        return (one.first, one.last, self._at(one.begin), one.count, one.lost, *numbers)

    def _owners(self, view: RunView) -> Table:
        """Return the owners of all moments that the detail knows, as a table."""
        detail = view.detail
        names = detail.names or view.overview.names
        numbers = [*range(rules.FIXED), *(self._number_of(rules.FIXED, (name,)) for name in names)]
        rows = [(self._at(begin), end - begin, numbers[category]) for begin, end, category in detail.owners]
        return self._columns.table(("begin", "length", "category"), rows)

    def _spans(self, view: RunView) -> dict[str, Any]:
        """Return the tables of steps and phases; owners only where those of all moments are known.

        `trace_ids` are those of the spans that are not in the trace of their attempt's job; 0 where it is not known.
        """
        columns, at = self._columns, self._at
        detail, whole = view.detail, not view.left_out
        traces = view.traces.others(detail, view.exported.spans, whole=whole)
        shown = [one for one in detail.phases if not view.is_note(one.phase, background=one.flags & NONBLOCKING)]
        rows = {(one.attempt, one.key): row for row, one in enumerate(shown)}
        steps = [
            (
                one.attempt, one.number, at(one.begin), _length(one), one.net, at(one.device_begin),
                at(one.device_end), one.fate, one.clock, one.flags, one.given,
            )
            for one in detail.steps
        ]  # fmt: skip
        phases = [
            (
                one.attempt, one.phase, self._number(one.name), at(one.begin), _length(one), one.step,
                one.flags & ~FAILED if view.is_job_time(one.phase, background=one.flags & NONBLOCKING) else one.flags,
                rows.get((one.attempt, one.parent), -1),
            )
            for one in shown
        ]  # fmt: skip
        return {
            "steps": columns.table(_STEPS, steps),
            "phases": columns.table(_PHASES, phases),
            "step_ids": self._ids(detail.steps),
            "phase_ids": self._ids(shown),
            "trace_ids": {
                "rows": len(traces),
                "columns": {
                    "ids": columns.ids(list(traces)),
                    "high": columns.ids([trace >> 64 for trace in traces.values()]),
                    "low": columns.ids([trace & _LOW for trace in traces.values()]),
                },
            },
            "device": columns.table(
                ("begin", "end", "owner"), [(at(begin), at(end), owner) for begin, end, owner in detail.work]
            ),
            "owners": self._owners(view) if whole else None,
        }

    def _ids(self, spans: Sequence[Step | Phase]) -> Table:
        ids = {row: one.key for row, one in enumerate(spans) if one.flags & IN_TRACE}
        columns = {"rows": self._columns.integers(ids), "ids": self._columns.ids(list(ids.values()))}
        return {"rows": len(ids), "columns": columns}

    def _attributes(self, exported: Exported) -> dict[str, Any]:
        """Return attributes of exported spans: their ids, and for each [name, value, name, value, …], names by number.

        Of spans with events, a status or a text of it, these stand by the row of the span.
        """
        redacted = self._redacted
        keys: dict[str, int] = {}
        pairs: list[list[Any]] = []
        more: dict[str, Any] = {}
        for row, one in enumerate(exported.spans.values()):
            attributes = redacted.attributes(one.attributes)
            numbered = ((keys.setdefault(name, len(keys)), value) for name, value in attributes.items())
            pairs.append([part for pair in numbered for part in pair])
            if one.notable:
                more[str(row)] = {
                    "status": one.status,
                    "message": redacted(one.message),
                    "events": [
                        {"time": self._at(time), "name": redacted(name), "attributes": redacted.attributes(held)}
                        for time, name, held in one.events
                    ],
                }
        return {
            "rows": len(pairs),
            "columns": {"ids": self._columns.ids(list(exported.spans))},
            "names": list(keys),
            "pairs": pairs,
            "more": more,
            "left_out": exported.left_out,
            "text": redacted(exported.text),
        }


def _length(span: Step | Phase) -> int:
    return NOT_KNOWN if span.end == NOT_KNOWN else span.end - span.begin


def cloud_trace(facts: Mapping[str, Any] | None) -> str | None:
    """Return the address of a span in Cloud Trace, with ``{trace}`` and ``{span}``; None if none was sent there.

    `facts` are those of an attempt.
    """
    opened = facts["exporters"] if facts else {}
    name = next((name for name in _GOOGLE if opened.get(name)), "")
    project = opened.get(name)
    if facts and name == _OVER_OTLP:  # the Telemetry API goes by the resource
        project = facts["resource"].get(GCP_PROJECT_ID) or project
    if not isinstance(project, str) or not project or not _PROJECT.issuperset(project):
        return None
    return _EXPLORER + project
