"""The page's document: a session as one container of JSON and columns (``docs/viewer.md`` says what is in it).

All times are ns from `origin_ns`, the run's first job start. Text from outside is plain text, and shown as such.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from otel_goodput._accounting import rules
from otel_goodput._accounting.overview import NOT_KNOWN, Overview, Spread
from otel_goodput._accounting.usage import Usage
from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput._viewer import spans
from otel_goodput._viewer.columns import Columns, Table
from otel_goodput._viewer.words import Names, Redaction
from otel_goodput.reports import advice, corrections, text
from otel_goodput.reports.detail import Detail
from otel_goodput.reports.report import Report
from otel_goodput.reports.run_view import Attempt, Process, RankSteps, RunView
from otel_goodput.reports.tail import News
from otel_goodput.semconv import CATEGORIES, PHASES, Category
from otel_goodput.version import __version__

FORMAT: Final = 1

_ELSEWHERE: Final = "configurations"  # of a report: the attempts have it, as their facts
_SHARES: Final = 255
_PROFILES: Final = "plugins/profile"  # below the folder that profiles go to
_STEP_BINS: Final = (
    "first", "last", "begin", "count", "lost", "net_min", "net_median", "net_max", "outside_min", "outside_median",
    "outside_max", "device_min", "device_median", "device_max",
)  # fmt: skip


def document(
    session: RunView, *, live: bool = False, server: Mapping[str, Any] | None = None, partial: bool = False
) -> bytes:
    """Return the document of a session, not compressed.

    Args:
        session: what is told.
        live: the page will ask for more.
        server: what the page says of its server: ``port``, and after how many seconds without a reader it stops
            (``idle_s``, None: never). None for a page from a file.
        partial: the rest is being read, and the page will have it later.
    """
    return _Writer(session, live).container(server, partial)


def window(session: RunView, detail: Detail, begin: int, until: int) -> bytes:
    """Return a part of a run, told one by one, in a container: the tables of spans, and ``begin`` and ``until``.

    Args:
        session: of the run; its own detail is not used.
        detail: what happened from `begin` to `until`, ns since the epoch.
    """
    return _Writer(replace(session, detail=detail, left_out=0), live=True).part(begin, until)


def tail(session: RunView, news: News) -> bytes:
    """Return what is new of a run, in a container as that of a window; without owners if there was too much of it."""
    overview = replace(session.overview, names=tuple(news.detail.names))
    told = replace(session, detail=news.detail, left_out=int(news.cut), overview=overview)
    return _Writer(told, live=True).part(news.begin, news.until)


def figures(report: Report, without: Collection[str] = (), redacted: Redaction | None = None) -> dict[str, Any]:
    """Return what the document says of a report: the part of it that changes all the time while a run is live.

    Args:
        report: the report.
        without: keys of it that are left out.
        redacted: what hides credentials; whoever asks every second keeps one, which remembers texts.
    """
    left_out = {*without, _ELSEWHERE}
    answer = {name: value for name, value in report.to_json().items() if name not in left_out}
    told: dict[str, Any] = (redacted or Redaction()).all(answer)
    return {"report": told, "headline": text.headline(told), **_verdict(told)}


def _verdict(report: dict[str, Any]) -> dict[str, Any]:
    if not report["elapsed_s"]:
        return {"verdict": "No job has started yet.", "verdict_source": None}
    source = None
    if report["goodput"] is not None:
        found = [one for one in advice.sources(report["seconds"]) if one[0] != Category.PRODUCTIVE]
        source = {"category": found[0][0], "name": found[0][1]} if found else None
    return {"verdict": advice.sentence(report), "verdict_source": source}


class _Writer:
    """Writes one document."""

    def __init__(self, session: RunView, live: bool) -> None:
        self._session = session
        self._live = live
        started = session.report.totals.started_at
        self._origin = session.overview.begin or (session.at if started is None else started)
        self._columns = Columns()
        self._redacted = Redaction()
        self._names = Names(self._redacted)
        self._custom: dict[str, int] = {name: rules.FIXED + at for at, name in enumerate(session.overview.names)}

    def container(self, server: Mapping[str, Any] | None, partial: bool) -> bytes:
        session, overview = self._session, self._session.overview
        head: dict[str, Any] = {
            "format": FORMAT,
            "version": __version__,
            "made_at": time.time(),
            "live": self._live,
            "server": server,
            "partial": partial,
            "origin_ns": str(self._origin),
            "end": max(0, max(session.at, session.detail.reached) - self._origin) if overview.begin else 0,
            **figures(session.report),
            "phase_names": list(PHASES),
            "attempts": [self._attempt(one) for one in session.attempts],
            "disruptions": self._disruptions(overview),
            "processes": [self._process(one) for one in session.processes],
            "bins": self._bins(overview),
            "step_bins": self._columns.table(_STEP_BINS, [self._step_bin(one) for one in overview.step_bins]),
            "rank_steps": self._columns.table(("process", *RankSteps._fields), list(self._rank_steps())),
            "histogram": self._columns.table(
                ("measure", "attempt", "fate", "bucket", "count"),
                [(*of, count) for of, count in sorted(overview.histogram.items())],
            ),
            "groups": [
                {
                    "phase": one.phase,
                    "name": self._names.number(one.name),
                    "background": one.background,
                    "count": one.count,
                    "sum_ns": one.total,
                    "min_ns": one.min,
                    "max_ns": one.max,
                    "failed": one.failed,
                }
                for one in overview.groups
            ],
            **self._spans(),
            "window_owners": self._window_owners(),
            "excluded": [[self._at(begin), self._at(end)] for begin, end in overview.excluded],
            "saves": self._columns.table(
                ("attempt", "step", "begin", "blocking_end", "durable_at", "failed"),
                [
                    (one.attempt, one.step, self._at(one.begin), self._at(one.end), self._at(one.durable), one.failed)
                    for one in overview.saves
                ],
            ),
            "at_risk": self._columns.table(("time", "ns"), [(self._at(at), held) for at, held in overview.at_risk]),
            "usage": self._usage(),
            "machines": [
                {"process": one.process, "attempt": one.attempt, **one.machine._asdict()} for one in session.usage
            ],
            "notices": [
                {"time": self._at(at), "reason": reason, "withdrawn": withdrawn}
                for at, reason, withdrawn in overview.notices
            ],
            "slices": [
                {"time": self._at(at), "active": active, "available": available, "total": total}
                for at, active, available, total in overview.slices
            ],
            "traces": {"cloud_trace": self._cloud_trace(), "xprof": self._xprof()},
            "attributes": spans.attributes(session.exported, self._columns, self._redacted, self._at),
            "detail": {
                "complete": not session.left_out,
                "windows": [[self._at(begin), self._at(end)] for begin, end in session.windows],
                "spans": len(session.detail.steps) + len(session.detail.phases),
                "left_out": session.left_out,
                "text": session.text,
            },
        }
        # Last: by now every name has its number.
        head["categories"] = self._categories()
        head["names"] = self._names.told
        return self._columns.container(head)

    def part(self, begin: int, until: int) -> bytes:
        head: dict[str, Any] = {
            "format": FORMAT,
            "origin_ns": str(self._origin),
            "begin": self._at(begin),
            "until": self._at(until),
            **self._spans(),
        }
        head["categories"] = self._categories()
        head["names"] = self._names.told
        return self._columns.container(head)

    def _at(self, moment: int) -> int:
        return moment if moment == NOT_KNOWN else moment - self._origin

    def _categories(self) -> list[dict[str, str]]:
        return [{"name": name, "custom": ""} for name in rules.NAMES] + [
            {"name": Category.CUSTOM, "custom": self._redacted(name)} for name in self._custom
        ]

    def _attempt(self, one: Attempt) -> dict[str, Any]:
        names = list(self._session.overview.names)
        fixed = {CATEGORIES[at]: held / NS for at, held in sorted(one.partition.items()) if at < rules.FIXED}
        custom = {
            self._redacted(names[at - rules.FIXED]): held / NS
            for at, held in sorted(one.partition.items())
            if at >= rules.FIXED
        }
        loss = None if one.loss is None else self._session.overview.disruptions[one.loss]
        elapsed, known = one.elapsed, self._session.report.totals.run.known
        return {
            "number": one.number,
            "begin": self._at(one.begin),
            "end": self._at(one.end),
            "state": one.state,
            "seconds": {**fixed, **({Category.CUSTOM: custom} if custom else {})},
            "elapsed_s": elapsed / NS,
            "goodput": one.partition[rules.PRODUCTIVE] / elapsed if elapsed and known else None,
            "trace_id": one.trace_id,
            "disruption": None
            if loss is None
            else {
                "reason": loss.reason,
                "recovery_ns": loss.recovery,
                "wasted_ns": loss.wasted,
                "from_step": loss.from_step,
                "to_step": loss.to_step,
            },
            "facts": self._redacted.all(one.facts),
        }

    def _disruptions(self, overview: Overview) -> list[dict[str, Any]]:
        said = corrections.told(overview.disruptions, self._session.report.corrections)
        known = self._session.report.totals.run.known  # when steps were over
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
            for one, more in zip(overview.disruptions, said, strict=True)
        ]

    def _process(self, one: Process) -> dict[str, Any]:
        pace = one.pace
        overview = one.overview
        productive = elapsed = 0
        for held in overview.bins if overview is not None else ():
            productive += held.get(rules.PRODUCTIVE, 0)
            elapsed += sum(held.values())
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
            "busy_share": productive / elapsed if elapsed else None,
            "problem": self._redacted(one.problem),
        }

    def _shares(self, overview: Overview) -> dict[str, Any]:
        held = sorted({category for one in overview.bins for category in one})
        width = overview.width
        whole, half = max(1, width), width // 2
        shares = bytearray()
        for category in held:
            parts = [(_SHARES * one.get(category, 0) + half) // whole for one in overview.bins]
            shares += bytes(parts if max(parts, default=0) <= _SHARES else [min(_SHARES, part) for part in parts])
        return {
            "begin": self._at(overview.begin),
            "width": width,
            "count": len(overview.bins),
            "categories": [self._category(category, overview.names) for category in held],
            "shares": self._columns.raw(bytes(shares)),
        }

    def _rank_steps(self) -> Iterator[tuple[int, ...]]:
        for one in self._session.processes:
            for first, last, begin, *rest in one.steps:
                yield (one.index, first, last, self._at(begin), *rest)

    def _usage(self) -> Table:
        rows = (
            (one.process, one.attempt, self._at(usage.end), *usage[1:])
            for one in self._session.usage
            for usage in one.usages
        )
        return self._columns.table(("process", "attempt", *Usage._fields), list(rows))

    def _category(self, number: int, names: Sequence[str]) -> int:
        """Return the number of a category of some process in the order of the document."""
        if number < rules.FIXED:
            return number
        return self._custom.setdefault(names[number - rules.FIXED], rules.FIXED + len(self._custom))

    def _bins(self, overview: Overview) -> dict[str, Any]:
        held = sorted({category for one in overview.bins for category in one})
        return {
            "begin": self._at(overview.begin) if overview.begin else 0,
            "width": overview.width,
            "count": len(overview.bins),
            "categories": held,
            "values": self._columns.columns(
                {str(category): [one.get(category, 0) for one in overview.bins] for category in held}
            ),
        }

    def _step_bin(self, one: Any) -> tuple[int, ...]:
        unknown = Spread(NOT_KNOWN, NOT_KNOWN, NOT_KNOWN)
        spreads = [told or unknown for told in (one.net, one.outside, one.device)]
        return (one.first, one.last, self._at(one.begin), one.count, one.lost, *(at for told in spreads for at in told))

    def _cloud_trace(self) -> str | None:
        """Return where spans are in Cloud Trace: as the latest attempt says that sent some there."""
        found = (spans.cloud_trace(one.facts) for one in reversed(self._session.attempts))
        return next((one for one in found if one is not None), None)

    def _window_owners(self) -> Table | None:
        """Return whose each moment of the windows is; None if the owners of the whole run are told."""
        return spans.owners(self._session.detail, self._columns, self._at) if self._session.left_out else None

    def _xprof(self) -> str | None:
        """Return the run's folder if jax's profiler has written there: xprof and TensorBoard read it."""
        folder = self._session.run.folder.path
        return self._redacted(str(folder)) if files.is_folder(folder / _PROFILES) else None

    def _spans(self) -> dict[str, Any]:
        session = self._session
        whole, told = not session.left_out, session.exported.spans
        traces = session.traces.others(session.detail, told, whole=whole)
        return spans.tables(session.detail, self._columns, self._names, self._at, traces, whole=whole)._asdict()
