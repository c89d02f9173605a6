"""Warnings about wrong use that makes the figures wrong; each is logged once, with the fix, and noted in the report."""

from __future__ import annotations

import threading
from collections.abc import Collection

from otel_goodput._journal.notes import UNMARKED, Notes
from otel_goodput._settings.options import Settings
from otel_goodput._text.redact import redacting_logger
from otel_goodput.semconv import Category

logger = redacting_logger("otel_goodput")


class Misuse:
    """Warns of wrong uses of phases in one process; the report shows the `notes` with the figures."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def _warn(self, kind: str, text: str, doubts: Collection[str] = ()) -> None:
        if self._notes.add(kind, text, doubts):
            logger.warning("%s", text)

    def elsewhere(self, phase: str) -> None:
        """Warn that a phase ended in another thread than it began in."""
        self._warn(
            f"{phase} ended elsewhere",
            f"A {phase} phase began in one thread and ended in another; its time counts, but later spans of the "
            "first thread may wrongly appear inside it. Open and close the phase in the same thread: `with "
            f"goodput.{phase}(...):`.",
        )

    def unmarked(self, runtime: str) -> None:
        """Warn that `runtime` is in use and that we do not see when its work is done."""
        self._warn(
            f"{UNMARKED} {runtime}",
            f"{runtime} works asynchronously and cannot be marked, so it is not known when steps end on the device. If "
            f"every step waits for its result, as `loss.item()` does, set {Settings.device_clock.variable}=host.",
        )

    def outside(self) -> None:
        """Warn that steps began although no job was opened."""
        self._warn(
            "no job",
            "Steps began, but no job was opened. An implicit job began with the first phase and lasts until the "
            "process ends. Write `with goodput.job():` around the whole program.",
        )

    def never_entered(self) -> None:
        """Warn that a job was created, but never entered."""
        self._warn(
            "job never entered",
            "goodput.job() was called but not used in a `with` statement, so no job was opened. Write `with "
            "goodput.job():` around the whole program.",
        )

    def after(self) -> None:
        """Warn that a step began after the end of the job."""
        self._warn(
            "steps after the job",
            "Steps began after goodput.job() ended and are not accounted for. Put all steps inside `with "
            "goodput.job():`.",
        )

    def back(self, number: int, latest: int) -> None:
        """Warn that step `number` began after step `latest`, although no checkpoint was restored in between."""
        self._warn(
            "steps went back",
            f"Step {number} began after step {latest}, but no checkpoint was restored in between, so the repeated "
            "steps count as lost work. If nothing was lost (for example because each epoch restarts at 0), let step "
            "numbers continue: write `for step, batch in goodput.steps(loader):`.",
            (Category.WASTED_PROGRESS,),
        )

    def pulled(self, caller: int) -> None:
        """Warn that another thread than `caller` (its id), which called ``steps()``, iterates over it."""
        if caller != threading.get_ident() and any(thread.ident == caller for thread in threading.enumerate()):
            self._warn(
                "steps in another thread",
                "goodput.steps() was called in one thread, and another one iterates over it. A prefetching "
                "thread does not train: let it iterate over the loader, and the training thread over steps(), as in "
                "`for step, batch in goodput.steps(prefetch(loader)):`. If the other thread trains, call steps() "
                "there.",
                (Category.PRODUCTIVE, Category.DATA_LOADING),
            )

    def starts_over(self, number: int, label: int, done: int) -> None:
        """Warn that a new attempt begins at step `number` although the checkpoint `label` of step `done` is durable."""
        self._warn(
            "begins anew",
            f"This attempt begins at step {number}, although a checkpoint that holds the steps up to {done} is durable "
            "and no restore was recorded; so all steps from there on count as lost work. If the loop resumes, say "
            f"where: write `with goodput.checkpoint_restore({label}):` around the code that loads the checkpoint, or "
            f"`goodput.steps(batches, start={done + 1})`.",
            (Category.WASTED_PROGRESS,),
        )

    def part_outside(self, name: str) -> None:
        """Warn that a part began although no step is open."""
        self._warn(
            "part outside of a step",
            f"goodput.part({name!r}) began outside of a step, so its time is not attributed to any step. Open it "
            f"inside a step, or write `with goodput.custom({name!r}):` for work outside steps.",
        )

    def own_spans(self, count: int) -> None:
        """Warn that `count` spans of the user's own are in one trace of the attempt."""
        self._warn(
            "spans of your own",
            f"One trace of this attempt has {count} spans of your own, with more to come; backends show only about "
            "10,000 spans per trace. Start separate traces for some of them, or sample them.",
        )

    def changed(self, key: str) -> None:
        """Warn that the attribute `key`, which identifies the phase, was set after the phase began."""
        self._warn(
            "attribute changed",
            f"The attribute {key} cannot be changed after a phase has begun; the change is ignored. Set it when you "
            "open the phase.",
        )
