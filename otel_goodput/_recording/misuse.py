"""Warnings about wrong use that makes the figures wrong; each is logged once, with the fix, and noted in the report."""

from __future__ import annotations

import threading
from typing import Final

from otel_goodput._journal.notes import UNMARKED, Notes
from otel_goodput._settings.options import Settings
from otel_goodput._text.redact import redacting_logger
from otel_goodput.semconv import Category

logger = redacting_logger("otel_goodput")

# What is wrong, by the kind of the note; "{}" stands for what is said of the case.
ELSEWHERE: Final = "{phase} ended elsewhere"
UNSEEN_RUNTIME: Final = UNMARKED + " {runtime}"
NO_JOB: Final = "no job"
NEVER_ENTERED: Final = "job never entered"
AFTER_JOB: Final = "steps after the job"
WENT_BACK: Final = "steps went back"
OTHER_THREAD: Final = "steps in another thread"
BEGINS_ANEW: Final = "begins anew"
PART_OUTSIDE: Final = "part outside of a step"
OWN_SPANS: Final = "spans of your own"
CHANGED: Final = "attribute changed"
_TEXTS: Final = {
    ELSEWHERE: "A {phase} phase began in one thread and ended in another; its time counts, but later spans of the "
    "first thread may wrongly appear inside it. Open and close the phase in the same thread: `with "
    "goodput.{phase}(...):`.",
    UNSEEN_RUNTIME: "{runtime} works asynchronously and cannot be marked, so it is not known when steps end on the "
    "device. If every step waits for its result, as `loss.item()` does, set "
    f"{Settings.device_clock.variable}=host.",
    NO_JOB: "Steps began, but no job was opened. An implicit job began with the first phase and lasts until the "
    "process ends. Write `with goodput.job():` around the whole program.",
    NEVER_ENTERED: "goodput.job() was called but not used in a `with` statement, so no job was opened. Write `with "
    "goodput.job():` around the whole program.",
    AFTER_JOB: "Steps began after goodput.job() ended and are not accounted for. Put all steps inside `with "
    "goodput.job():`.",
    WENT_BACK: "Step {number} began after step {latest}, but no checkpoint was restored in between, so the repeated "
    "steps count as lost work. If nothing was lost (for example because each epoch restarts at 0), let step numbers "
    "continue: write `for step, batch in goodput.steps(loader):`.",
    OTHER_THREAD: "goodput.steps() was called in one thread, and another one iterates over it. A prefetching thread "
    "does not train: let it iterate over the loader, and the training thread over steps(), as in `for step, batch in "
    "goodput.steps(prefetch(loader)):`. If the other thread trains, call steps() there.",
    BEGINS_ANEW: "This attempt begins at step {number}, although a checkpoint that holds the steps up to {done} is "
    "durable and no restore was recorded; so all steps from there on count as lost work. If the loop resumes, say "
    "where: write `with goodput.checkpoint_restore({label}):` around the code that loads the checkpoint, or "
    "`goodput.steps(batches, start={next})`.",
    PART_OUTSIDE: "goodput.part({name!r}) began outside of a step, so its time is not attributed to any step. Open it "
    "inside a step, or write `with goodput.custom({name!r}):` for work outside steps.",
    OWN_SPANS: "One trace of this attempt has {count} spans of your own, with more to come; backends show only about "
    "10,000 spans per trace. Start separate traces for some of them, or sample them.",
    CHANGED: "The attribute {key} cannot be changed after a phase has begun; the change is ignored. Set it when you "
    "open the phase.",
}
_DOUBTS: Final = {
    WENT_BACK: (Category.WASTED_PROGRESS,),
    BEGINS_ANEW: (Category.WASTED_PROGRESS,),
    OTHER_THREAD: (Category.PRODUCTIVE, Category.DATA_LOADING),
}


class Misuse:
    """Warns of wrong uses of phases in one process; the report shows the `notes` with the figures."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def warn(self, kind: str, **case: object) -> None:
        """Warn of a wrong use of this kind, one of the constants of this module, with what its text names."""
        text = _TEXTS[kind].format(**case)
        if self._notes.add(kind.format(**case), text, _DOUBTS.get(kind, ())):
            logger.warning("%s", text)

    def pulled(self, caller: int) -> None:
        """Warn that another thread than `caller` (its id), which called ``steps()``, iterates over it."""
        if caller != threading.get_ident() and any(thread.ident == caller for thread in threading.enumerate()):
            self.warn(OTHER_THREAD)
