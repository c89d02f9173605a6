"""Check that marks become ready in order: nothing documents that what is dispatched last is done last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from otel_goodput.text.redact import redacting_logger

logger = redacting_logger("otel_goodput")

FIRST: Final = 3  # marks checked at the beginning
EVERY: Final = 1000  # of later marks, one in this many is checked
TWICE: Final = 2  # checks in a row with most results late; a single one may be due to a transfer for a later step


class MarkingOrder:
    """Checks some marks against results of the work before them.

    Attributes:
        wrong: marks became ready before the work in front of them, so they cannot be trusted.
    """

    def __init__(self) -> None:
        self._set = 0
        self._bad = 0
        self.wrong = False

    def due(self) -> bool:
        """Count a mark that was set; return whether it is to be checked."""
        self._set = count = self._set + 1
        return count <= FIRST or not count % EVERY or 0 < self._bad < TWICE

    def check(self, results: Any, ready: Callable[[Any], bool | None], widen: Callable[[], bool]) -> None:
        """Check that `results` are ready, now that the mark behind them is.

        If most are late in ``TWICE`` checks in a row, call `widen`; if that returns False, marks are `wrong` for good.
        """
        answers = [answer for answer in map(ready, results) if answer is not None]
        if 2 * sum(answers) >= len(answers):
            self._bad = 0
            return
        self._bad += 1
        if self._bad < TWICE:
            return
        self._bad = 0
        if not widen() and not self.wrong:
            self.wrong = True
            logger.warning(
                "marks became ready before the work dispatched ahead of them: this backend does not run work in "
                "order, so the device times of steps are unknown from now on; pass a result of each step to "
                "step.observe()"
            )
