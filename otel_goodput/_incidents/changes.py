"""Settings that the program changes while it trains, as it says by attributes of its job and its steps.

The keeper's thread looks at the attributes of the step that began last. What was the same in several steps and is
another value then was changed; what differs from step to step, such as a loss, is no setting.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from otel_goodput._incidents.evidence import Circumstance
from otel_goodput._journal.facts import safe
from otel_goodput._runtime.guard import containing
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import format_duration
from otel_goodput._text.redact import secrets, shown

STABLE: Final = 8  # looks at different steps in which it was the same
NAMES: Final = 100  # attributes that are followed
CHANGES: Final = 16  # that are remembered, and
SHOWN: Final = 4  # the latest that are evidence
BEFORE_NS: Final = 60 * NS  # a change so long before an incident began may be its cause
_OURS: Final = "goodput."


class Change(NamedTuple):
    """A setting that was changed: between two looks, at the steps `first` and `step`, the last one at `at`, ns."""

    name: str
    before: Any
    after: Any
    first: int
    step: int
    at: int

    def text(self, began: int) -> str:
        """Return it in a sentence, with how long that was before `began`, ns."""
        when = f"at step {self.step}"
        if self.step > self.first + 1:
            when = f"between steps {self.first} and {self.step}"
        if self.step < 0:
            when = "before the first step"
        hidden = secrets(os.environ)
        before, after = (shown(str(safe(self.name, value, hidden)))[:60] for value in (self.before, self.after))
        ago = f", {format_duration((began - self.at) / NS)} before" if began - self.at >= NS else ""
        return f"{shown(self.name)[:60]} changed from {before} to {after} {when}{ago}"


class _Followed:
    """An attribute: its value, in how many steps it was the same, and at which step it was seen last."""

    __slots__ = ("count", "step", "value")

    def __init__(self, value: Any, step: int) -> None:
        self.value, self.step, self.count = value, step, 1


class ChangedSettings:
    """The settings that were changed lately.

    Args:
        job: returns the span of the job, or None; `step`: that of the step that began last.
        clock: ns since the epoch.
    """

    def __init__(self, job: Callable[[], object], step: Callable[[], Any], clock: Callable[[], int]) -> None:
        self._job, self._step, self._clock = job, step, clock
        self._followed: dict[tuple[bool, str], _Followed] = {}
        self._changes = deque[Change](maxlen=CHANGES)

    def look(self) -> None:
        """Look at the attributes; for the keeper's thread, at every tick."""
        with containing("settings that are changed"):
            step = self._step()
            number = int(step.step)
            for of_step, span in ((False, self._job()), (True, step)):
                for name, value in _attributes(span).items():
                    if not name.startswith(_OURS):
                        self._take((of_step, name), value, number)

    def _take(self, key: tuple[bool, str], value: Any, number: int) -> None:
        known = self._followed.get(key)
        if known is None:
            if len(self._followed) < NAMES:
                self._followed[key] = _Followed(value, number)
        elif value == known.value:
            known.count += number != known.step
            known.step = number
        else:
            if known.count >= STABLE:
                self._changes.append(Change(key[1], known.value, value, known.step, number, self._clock()))
            self._followed[key] = _Followed(value, number)

    def sentences(self, of: Circumstance) -> list[str]:
        lately = [one for one in self._changes if of.began - BEFORE_NS <= one.at <= of.opened]
        return [one.text(of.began) for one in lately[-SHOWN:]]


def _attributes(span: object) -> Mapping[str, Any]:
    """Return a copy of what the program has set on a span. Takes no lock, for which the training thread might wait."""
    copied = getattr(getattr(span, "_attributes", None), "copy", None)
    return copied() if copied is not None else {}
