"""Warnings about wrong use that makes the figures wrong; each is logged once, with the fix, and noted in the report."""

from __future__ import annotations

from collections.abc import Collection

from otel_goodput.journal.notes import Notes
from otel_goodput.semconv import Category
from otel_goodput.text.redact import redacting_logger

logger = redacting_logger("otel_goodput")


class Misuse:
    """Warns of wrong uses of phases in one process.

    Args:
        notes: receives the warnings, which the report shows with the figures.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def _say(self, kind: str, text: str, doubts: Collection[str] = ()) -> None:
        if self._notes.add(kind, text, doubts):
            logger.warning("%s", text)

    def elsewhere(self, phase: str) -> None:
        """Warn that a phase ended in another thread than it began in."""
        self._say(
            f"{phase} ended elsewhere",
            f"A {phase} phase began in one thread and ended in another; its time counts, but spans of the first thread "
            f"may look as if they were inside of it. Write `with goodput.{phase}(...):` around what one thread does.",
        )

    def outside(self) -> None:
        """Warn that steps began although no job was opened."""
        self._say(
            "no job",
            "Steps begin outside of a job: one was begun for you with the first phase, and lasts until the process "
            "ends. Write `with goodput.job():` around all of it.",
        )

    def never_entered(self) -> None:
        """Warn that a job was created, but never entered."""
        self._say(
            "job never entered",
            "goodput.job() was called and never entered, so it opened no job. Write `with goodput.job():` around all "
            "of it.",
        )

    def after(self) -> None:
        """Warn that a step began after the end of the job."""
        self._say(
            "steps after the job",
            "Steps began after the end of goodput.job(): they do not count. Write `with goodput.job():` around all of "
            "them.",
        )

    def back(self, number: int, latest: int) -> None:
        """Warn that step `number` began after step `latest`, although no checkpoint was restored in between."""
        self._say(
            "steps went back",
            f"Step {number} began after step {latest}, and no checkpoint was restored between: what was trained since "
            "counts as lost. If it was not, as where each epoch counts from 0, let the steps be counted on: write "
            "`for step, batch in goodput.steps(loader):`.",
            (Category.WASTED_PROGRESS,),
        )

    def part_outside(self, name: str) -> None:
        """Warn that a part began although no step is open."""
        self._say(
            "part outside of a step",
            f"goodput.part({name!r}) began outside of a step: it counts nowhere. Open it inside of a step, or write "
            f"`with goodput.custom({name!r}):` for what is none of a step's work.",
        )

    def own_spans(self, count: int) -> None:
        """Warn that `count` spans of the user's own are in one trace of the attempt."""
        self._say(
            "spans of your own",
            f"{count} spans of your own are in one trace of this attempt, beside ours, and more come: backends show "
            "about 10,000 of a trace. Open a trace of their own for some of them, or sample them.",
        )

    def changed(self, key: str) -> None:
        """Warn that the attribute `key`, which identifies the phase, was set after the phase began."""
        self._say(
            "attribute changed",
            f"The attribute {key} of a phase was set after its begin: it is settled by then, and was left as it was. "
            "Say it where the phase is opened.",
        )
