"""Phases as context managers by an event's name, as Google's guide shows them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager

from otel_goodput.compat.ml_goodput_measurement import goodput
from otel_goodput.semconv import Phase


class Event(enum.Enum):
    """A phase of the job; its value is in the names of the recorder's methods."""

    JOB = "job"
    ACCELERATOR_INIT = "tpu_init"
    TRAINING_PREP = "training_preparation"
    DATA_LOADING = Phase.DATA_LOADING
    STEP = "step"
    CUSTOM = "custom_badput_event"


class GoodputRecorder(goodput.GoodputRecorder):
    """A recorder with a context manager."""

    @contextmanager
    def record_event(self, event: Event, *args: object) -> Iterator[None]:
        """Record `event` around the block; `args`: the number of a step, the type of a custom event.

        An exception in the block means that the event did not end.
        """
        if event is Event.CUSTOM:
            kind = str(args[0]) if args else "unknown"
            self.record_custom_badput_event_start_time(custom_badput_event_type=kind)
            yield
            self.record_custom_badput_event_end_time(custom_badput_event_type=kind)
            return
        getattr(self, f"record_{event.value}_start_time")(*args)
        yield
        if event is not Event.STEP:
            getattr(self, f"record_{event.value}_end_time")()
