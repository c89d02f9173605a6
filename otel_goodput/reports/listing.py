"""The table of the runs of a place: the state of each, and its main figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import aligned, format_duration, format_moment, percent, plural
from otel_goodput._text.redact import encodable, shown
from otel_goodput.reports import ProgressCallback, no_progress, ranks_text
from otel_goodput.reports.fields import ProcessFields
from otel_goodput.reports.report import Report
from otel_goodput.reports.run import RecordedRun

SHOWN: Final = 20  # of the runs to choose from
UNREADABLE: Final = "not readable"  # in the place of a state
_TITLES: Final = (
    "run", "job", "state", "attempts", "began", "elapsed", "goodput", "last 1 h", "at risk", "last sign of life",
    "incidents",
)  # fmt: skip
_RIGHT: Final = frozenset({3, 5, 6, 7, 8})  # columns of numbers
_OPEN_SHOWN: Final = 2  # incidents that are open, in the text, the latest
_OPEN: Final = ("kind", "cause", "phase", "rank", "line", "began")  # what a row has of an incident that is open
_LAST: Final = "1h"  # the rolling window that is shown


class RunRow(NamedTuple):
    """One run at one moment, by the names that the JSON has; times in seconds, moments in seconds since the epoch."""

    run_id: str
    job_name: str = ""
    state: str = UNREADABLE  # or ``running``, ``ended``, ``failed``, ``died``, ``silent``
    attempts: int = 0
    started_at: float | None = None
    elapsed_s: float | None = None
    goodput: float | None = None
    reason: str | None = None  # why figures are not known; None if they are
    rolling: Mapping[str, float | None] | None = None  # goodput of rolling windows, by length (``1h``)
    at_risk_s: float | None = None
    last_sign_of_life: float | None = None
    damaged: bool = False  # a part of its journal could not be read
    error: str | None = None  # why there are no figures
    incidents: int | None = None  # how many there were so far; None if that is not known
    open_incidents: Sequence[Mapping[str, Any]] = ()  # those that are not over, as in a report, but only ``_OPEN``
    latest: float | None = None  # when its latest attempt began; None if that is not known
    process: ProcessFields | None = None  # whose account it is, if it is that of one process of several

    def to_json(self) -> dict[str, Any]:
        answer = self._asdict()
        del answer["latest"]
        if self.process is None:
            del answer["process"]
        return answer


def rows(
    runs: Iterable[RecordedRun], process: int | None = None, progress: ProgressCallback = no_progress
) -> list[RunRow]:
    """Return a row for each of the runs, the one whose latest attempt began last first; those without a journal last.

    It does not raise: a run that cannot be read is a row that says why.
    """
    there = [run for run in runs if files.is_folder(run.folder.path)]
    rows = []
    for at, run in enumerate(there):
        progress(at, len(there), f"reading run {run.run_id}")
        rows.append(row_of(run, process))
    return sorted(rows, key=lambda row: (row.latest is None, -(row.latest or 0.0), row.run_id))


def row_of(run: RecordedRun, process: int | None = None) -> RunRow:
    """Return the row of a run. It does not raise."""
    run_id, latest = run.folder.path.name, None
    try:
        run_id = run.run_id
        if (began := run.folder.began(run.first() if process is None else process)) is not None:
            latest = began / NS
        return row_from(run.report(process=process, others=False), run, latest, process)
    except Exception as error:  # one run must not prevent the rows of the others
        return RunRow(encodable(run_id), latest=latest, error=shown(str(error) or type(error).__name__))


def row_from(report: Report, run: RecordedRun, latest: float | None, process: int | None = None) -> RunRow:
    """Return the row of a run whose report is known. `latest`: when its latest attempt began, s since the epoch."""
    totals, answer = report.totals, dict[str, Any](report.to_json())
    answer |= {
        "rolling": {one["window"]: one["goodput"] for one in answer["rolling"]},
        "attempts": max(totals.attempts, run.folder.attempts(run.first() if process is None else process)[-1] + 1),
        "last_sign_of_life": answer["last_sign_of_life"] or totals.last_sign / NS,
        "damaged": report.damaged,
        "error": None,
        "incidents": len(report.incidents),
        "open_incidents": [{name: one[name] for name in _OPEN} for one in answer["incidents"] if one["ended"] is None],
        "latest": latest,
        "process": answer.get("process"),
    }
    return RunRow(**{name: answer[name] for name in RunRow._fields})


def render(rows: Sequence[RunRow], place: str) -> str:
    """Return the table as text; `place` says where the runs are."""
    cells = [tuple(map(shown, _cells(row))) for row in rows]
    lines = [f"{plural(len(rows), 'run')} in {place}", "", *aligned([_TITLES, *cells], _RIGHT)]
    notes = [f"  {row.run_id}: {row.error}" for row in rows if row.error]
    damage = "part of its journal cannot be read; see `otel-goodput report`"
    notes += [f"  {row.run_id}: {damage}" for row in rows if row.damaged]
    notes += [f"  {row.run_id}: goodput {row.reason}" for row in rows if row.reason]
    notes += [f"  {row.run_id}: {note}" for row in rows for note in ranks_text.only(row.process)]
    if notes:
        lines += ["", *notes]
    return "".join(f"{shown(line)}\n" for line in lines)


def _cells(row: RunRow) -> tuple[str, ...]:
    if row.error:
        return (row.run_id, "", UNREADABLE, "", "" if row.latest is None else format_moment(row.latest), *[""] * 6)
    return (
        row.run_id,
        row.job_name,
        row.state + (" (damaged)" if row.damaged else ""),
        str(row.attempts),
        "-" if row.started_at is None else format_moment(row.started_at),
        "-" if row.elapsed_s is None else format_duration(row.elapsed_s),
        "-" if row.goodput is None or not row.elapsed_s else percent(row.goodput, 1),
        "-" if (last := (row.rolling or {}).get(_LAST)) is None else percent(last, 1),
        "-" if row.at_risk_s is None else format_duration(row.at_risk_s),
        "-" if row.last_sign_of_life is None else format_moment(row.last_sign_of_life),
        _wrong(row),
    )


def _wrong(row: RunRow) -> str:
    """Return which incidents are open, the latest first, and how many there were in all."""
    if not row.open_incidents:
        return str(row.incidents) if row.incidents else "-"
    texts = []
    for one in row.open_incidents[: -_OPEN_SHOWN - 1 : -1]:
        rank = "" if one["rank"] is None else f" of rank {one['rank']}"
        texts.append(f"{one['kind']}{rank} since {format_moment(one['began'])}")
    if row.incidents != len(texts):
        texts.append(f"{row.incidents} in all")
    return "; ".join(texts)


# --- the runs to choose from ------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One run: when its latest attempt began (ns; None: not known), and the number of attempts."""

    run: RecordedRun
    run_id: str
    began: int | None
    attempts: int


def entries(runs: Iterable[RecordedRun], process: int | None = None) -> list[Entry]:
    """Return the runs with a journal of `process`, the latest first; only the beginning of a journal is read."""
    read = [(run, run.first() if process is None else process) for run in runs]
    known = [
        Entry(run, run.run_id, run.folder.began(index), attempts[-1] + 1)
        for run, index in read
        if (attempts := run.folder.attempts(index))
    ]
    return sorted(known, key=lambda entry: (-(entry.began or 0), entry.run_id))


def choice(known: list[Entry], place: str) -> str:
    """Return the list as text; `place` says where the runs are."""
    lines = [f"{len(known)} runs in {place}; the newest is shown, --run ID shows another:"]
    widest = max(len(entry.run_id) for entry in known[:SHOWN])
    for entry in known[:SHOWN]:
        began = "" if entry.began is None else f"  since {format_moment(entry.began / NS)}"
        lines.append(f"  {entry.run_id:<{widest}}  {plural(entry.attempts, 'attempt'):<11}{began}")
    if len(known) > SHOWN:
        lines.append(f"  and {len(known) - SHOWN} older ones")
    return "".join(f"{shown(line)}\n" for line in lines)
