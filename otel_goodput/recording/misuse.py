"""What was written in a way that cannot give the right figures: said once, with the line to write, and noted for the
report.
"""

from __future__ import annotations

from collections.abc import Collection

from otel_goodput.journal.notes import Notes
from otel_goodput.semconv import Category
from otel_goodput.text.redact import redacting_logger

logger = redacting_logger("otel_goodput")


class Misuse:
    """The wrong uses of phases in one process.

    Args:
        notes: what the report shows beside the figures.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def _say(self, kind: str, text: str, doubts: Collection[str] = ()) -> None:
        if self._notes.add(kind, text, doubts):
            logger.warning("%s", text)

    def elsewhere(self, phase: str) -> None:
        """A phase ends in another thread than it began in."""
        self._say(
            f"{phase} ended elsewhere",
            f"A {phase} phase began in one thread and ended in another; its time counts, but spans of the first thread "
            f"may look as if they were inside of it. Write `with goodput.{phase}(...):` around what one thread does.",
        )

    def outside(self) -> None:
        """Steps begin, and no job has been opened."""
        self._say(
            "no job",
            "Steps begin outside of a job: one was begun for you with the first phase, and lasts until the process "
            "ends. Write `with goodput.job():` around all of it.",
        )

    def never_entered(self) -> None:
        """A job was made, and dropped."""
        self._say(
            "job never entered",
            "goodput.job() was called and never entered, so it opened no job. Write `with goodput.job():` around all "
            "of it.",
        )

    def after(self) -> None:
        """A step begins after the job."""
        self._say(
            "steps after the job",
            "Steps began after the end of goodput.job(): they do not count. Write `with goodput.job():` around all of "
            "them.",
        )

    def back(self, number: int, latest: int) -> None:
        """A step is told to be `number` after `latest` was, and no checkpoint was restored between."""
        self._say(
            "steps went back",
            f"Step {number} began after step {latest}, and no checkpoint was restored between: what was trained since "
            "counts as lost. If it was not, as where each epoch counts from 0, let the steps be counted on: write "
            "`for step, batch in goodput.steps(loader):`.",
            (Category.WASTED_PROGRESS,),
        )

    def part_outside(self, name: str) -> None:
        """A part begins, and no step is open."""
        self._say(
            "part outside of a step",
            f"goodput.part({name!r}) began outside of a step: it counts nowhere. Open it inside of a step, or write "
            f"`with goodput.custom({name!r}):` for what is none of a step's work.",
        )

    def own_spans(self, count: int) -> None:
        """So many spans that are none of ours are in one trace of the attempt."""
        self._say(
            "spans of your own",
            f"{count} spans of your own are in one trace of this attempt, beside ours, and more come: backends show "
            "about 10,000 of a trace. Open a trace of their own for some of them, or sample them.",
        )

    def changed(self, key: str) -> None:
        """An attribute that says what a phase is was set after its begin."""
        self._say(
            "attribute changed",
            f"The attribute {key} of a phase was set after its begin: it is settled by then, and was left as it was. "
            "Say it where the phase is opened.",
        )
