"""The report: an account as text, HTML and JSON, with reasons of disruptions as later statements correct them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from otel_goodput._accounting.disruption import REMEMBERED, Disruption
from otel_goodput._accounting.incidents import Incident
from otel_goodput._accounting.overview import Overview
from otel_goodput._accounting.totals import Totals, partition_html
from otel_goodput._journal.facts import Facts, summed
from otel_goodput._journal.loader_times import AttemptLoader
from otel_goodput._journal.notes import DAMAGED, Note, Statement
from otel_goodput._journal.usage import AttemptUsage
from otel_goodput._runtime import files
from otel_goodput._text.durations import NS
from otel_goodput._text.redact import shown
from otel_goodput._timeline.damage import Damage
from otel_goodput._timeline.run_state import Culprit, RunState, live
from otel_goodput.errors import GoodputError
from otel_goodput.reports import incidents, loader, rolling, text, usage
from otel_goodput.reports.fields import ProcessFields, ReportFields
from otel_goodput.reports.ranks import RankWaits, without_guesses
from otel_goodput.reports.text import doubts, sentence
from otel_goodput.semconv import CATEGORIES, Category


class Correction(NamedTuple):
    """A correction of the reason of one disruption."""

    reason: str  # that counts
    first: str  # the reason that the journal has
    by: str  # who made it; empty if the journals of all processes show it together
    note: str  # more for a person, or an empty string
    # That ended first, or that the others waited for; None if they were ended from outside, or if that is not known.
    process: int | None = None
    known: bool = True  # False if several processes ended, and their journals do not show which was first


class OneProcess(NamedTuple):
    """Whose account it is, if it is that of one process of several."""

    process: int
    processes: int
    reason: str | None = None  # why it is not that of all of them; None if this one was requested

    def to_json(self) -> ProcessFields:
        return {"index": self.process, "count": self.processes, "reason": self.reason}


Corrections = Mapping[int, Correction]  # by the number of the attempt that the disruption began


def restarts(disruptions: Iterable[Disruption]) -> dict[int, Disruption]:
    """Return the disruption that each attempt began with; a second job in the same process is another one."""
    first: dict[int, Disruption] = {}
    for one in disruptions:
        if one.attempt is not None:
            first.setdefault(one.attempt, one)
    return first


def corrected(
    totals: Totals, statements: Mapping[int, Statement], culprits: Mapping[int, Culprit] | None = None
) -> tuple[Totals, Corrections]:
    """Return the account with reasons from `statements` and `culprits`, and what was corrected.

    A statement by a person counts before what the journals of all processes show together. Disruptions that the account
    no longer remembers one by one are counted by the reason that they had at the time of the statement.
    """
    culprits = culprits or {}
    if not statements and not culprits:
        return totals, {}
    counts = Counter(totals.disruptions)
    known = restarts(totals.history)
    # Attempts before this one may have begun with a disruption that is no longer remembered; 0: all are.
    oldest = min(known, default=0) if len(totals.history) >= REMEMBERED else 0
    corrections: dict[int, Correction] = {}
    inferred = {
        attempt: Statement(attempt, one.reason, known[attempt].reason, "", False, 0.0)
        for attempt, one in culprits.items()
        if attempt in known
    }
    for attempt, one in {**inferred, **statements}.items():
        if attempt not in known and not 1 < attempt < oldest:
            continue  # no such attempt, or none yet at the moment of the account
        first = known[attempt].reason if attempt in known else one.first_reason
        corrections[attempt] = Correction(one.reason, first, one.author, one.note)
        if attempt in known and (culprit := culprits.get(attempt)) is not None:
            corrections[attempt] = corrections[attempt]._replace(process=culprit.process, known=culprit.known)
        if counts[first] > 0:
            counts[first] -= 1
            counts[one.reason] += 1
    history = _with_reasons(totals.history, corrections)
    return replace(totals, disruptions=dict(+counts), history=history), corrections


def corrected_overview(overview: Overview, corrections: Corrections) -> Overview:
    """Return an overview with the reasons that a report corrected."""
    if not corrections:
        return overview
    return replace(overview, disruptions=tuple(_with_reasons(overview.disruptions, corrections)))


def _with_reasons(entries: Sequence[Disruption], corrections: Corrections) -> list[Disruption]:
    corrected = zip(entries, _of_each(entries, corrections), strict=True)
    return [entry._replace(reason=one.reason) for entry, one in corrected]


def _of_each(entries: Sequence[Disruption], corrections: Corrections) -> list[Correction]:
    """Return the correction of each disruption; of one that was not corrected, one that changes nothing."""
    by_entry = {id(entry): corrections[at] for at, entry in restarts(entries).items() if at in corrections}
    return [by_entry.get(id(entry)) or Correction(entry.reason, entry.reason, "", "") for entry in entries]


def correction_fields(entries: Sequence[Disruption], corrections: Corrections) -> list[dict[str, Any]]:
    """Return the fields of each disruption in a report's JSON that tell its correction."""
    return [
        {
            "first_reason": one.first,
            "said_by": one.by or None,
            "note": one.note or None,
            "process": one.process,
            "process_known": one.known,
        }
        for one in _of_each(entries, corrections)
    ]


# `custom` has a time for each name and no total, so without custom phases it is not in a report.
_ZEROS: Final = dict.fromkeys((name for name in CATEGORIES if name != Category.CUSTOM), 0.0)
_CONFIGURATIONS: Final = 100  # in a report, the latest ones


@dataclass(frozen=True, repr=False)
class Report:
    """An account, the identity of its run, and notes on the figures. ``str()`` gives it as text, :meth:`to_json` as
    JSON, and :meth:`html` writes it as a page.
    """

    totals: Totals
    about: dict[str, Any]
    notes: Sequence[Note] = ()
    standing: RunState | None = None
    damage: Sequence[Damage] = ()
    corrections: Corrections = field(default_factory=dict)  # of its disruptions; `totals` has the reasons
    facts: Sequence[Facts] = ()  # what its attempts ran with, waited for and compiled
    ranks: RankWaits | None = None  # of the account of a job of several ranks
    process: OneProcess | None = None  # of the account of one process of several
    incidents: Sequence[tuple[int, Incident]] = ()  # each with its attempt, counted from 0
    usage: Sequence[AttemptUsage] = ()  # of processor, memory and accelerators, where it was sampled
    loaders: Sequence[AttemptLoader] = ()  # what training waited for in its data loaders, where that was timed
    page: Callable[[Report], str] | None = field(default=None, compare=False)  # makes the page; a run's report has it

    @property
    def damaged(self) -> bool:
        """Whether a damaged part of the journal is missing from the figures, found now or at an earlier start."""
        return any(note.kind.startswith(DAMAGED) for note in self.notes)

    @property
    def state(self) -> str:
        """The state of the run at that time: ``running``, ``ended``, ``failed``, ``died`` or ``silent``."""
        return (self.standing or live(self.totals)).state

    def to_json(self) -> ReportFields:
        """Return the account for JSON: every category, and the identity, state and warnings of the run."""
        answer: dict[str, Any] = {
            **self.totals.to_json(),
            **self.about,
            "started_at": None if self.totals.started_at is None else self.totals.started_at / NS,
            "ended": self.totals.ended,
            **(self.standing or live(self.totals)).to_json(),
            **summed(self.facts).to_json(),
        }
        if self.ranks is not None:
            answer["ranks"] = self.ranks.to_json(self.totals.run.productive, self.totals.run.elapsed)
            if "processes" in answer:
                answer["processes"] |= without_guesses(answer)
        if self.process is not None:
            answer["process"] = self.process.to_json()
        if self.facts:
            answer["configurations"] = _configurations(self.facts)
        answer["incidents"] = [incidents.to_json(one, attempt) for attempt, one in self.incidents]
        if (used := usage.to_json(self.usage)) is not None:
            answer["usage"] = used
        if (loading := loader.to_json(self.loaders, answer["seconds"], answer["elapsed_s"])) is not None:
            answer["loader"] = loading
        answer["rolling"] = rolling.to_json(self.totals.recent)
        for partition in (answer, *answer["windows"], *answer["rolling"]):
            partition["seconds"] = _ZEROS | partition["seconds"]
        remarks = correction_fields(self.totals.history, self.corrections)
        answer["disruption_list"] = [one | more for one, more in zip(answer["disruption_list"], remarks, strict=True)]
        answer["damage"] = [one.to_json() for one in self.damage]
        answer["warnings"] = [note.to_json() for note in (*self.notes, *doubts(answer))]
        return cast("ReportFields", answer)

    def html(self, path: str | Path) -> Path:
        """Write the report as a page with charts and a timeline: one file that needs no network. Returns its path.

        It reads the journal of the run so far, which may take seconds: not for the training loop. Only the owner of
        the file may read it.

        Args:
            path: the file to write.

        Raises:
            GoodputError: this is not the report of a run with a journal, or `path` is a directory.
            OSError: the file cannot be written.
        """
        place = files.named(path)
        if files.is_folder(place):
            raise GoodputError(f"{path} is a directory: name the file that the page goes to, such as report.html")
        if self.page is None:
            raise GoodputError("this report has no page: its run has no journal")
        files.write_for_owner(place, self.page(self).encode())
        return place

    def __str__(self) -> str:
        return text.render(self.to_json())

    def __repr__(self) -> str:
        """Return the headline only; ``str()`` gives the whole report."""
        return f"<{shown(text.headline(self.to_json()))}>"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a bar, a table, the notes and the closing sentence."""
        answer = self.to_json()
        remarks = [note["text"] for note in answer["warnings"]]
        if answer["elapsed_s"]:
            remarks.append(sentence(answer))
        run = self.totals.run
        return partition_html(run.rows(), run.elapsed, text.headline(answer), tuple(remarks), known=run.known)


def about(run_id: str, job_name: str) -> dict[str, Any]:
    """Return the identity of a run, as a report's JSON has it."""
    return {"run_id": run_id, "job_name": job_name}


def _configurations(facts: Iterable[Facts]) -> list[dict[str, Any]]:
    """Return what attempts ran with; consecutive attempts that ran with the same are one entry."""
    configurations: list[dict[str, Any]] = []
    for one in facts:
        values = {
            "settings": {name: {"value": value, "source": source} for name, (value, source) in one.settings.items()},
            "versions": one.versions,
            "hyperparameters": one.hyperparameters,
        }
        number = one.attempt + 1
        if configurations and all(configurations[-1][name] == value for name, value in values.items()):
            configurations[-1]["last_attempt"] = number
        else:
            configurations.append({"first_attempt": number, "last_attempt": number, **values})
    return configurations[-_CONFIGURATIONS:]
