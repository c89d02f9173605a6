"""Check that marks become ready in order: nothing documents that what is dispatched last is done last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from otel_goodput.text.redact import redacting_logger

logger = redacting_logger("otel_goodput")

FIRST: Final = 3  # marks checked at the beginning
EVERY: Final = 1000  # of later marks, one in this many is checked;
OFTEN: Final = 4  # one in so many, if the marker is in doubt
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

    def due(self, *, doubtful: bool) -> bool:
        """Count a mark that was set; return whether it is to be checked."""
        self._set = count = self._set + 1
        return count <= FIRST or not count % (OFTEN if doubtful else EVERY) or 0 < self._bad < TWICE

    def check(
        self,
        results: Sequence[Any],
        ready: Callable[[Any], bool | None],
        retarget: Callable[[Sequence[Any]], bool],
    ) -> bool:
        """Check that `results` are ready, now that the mark behind them is; return False if the mark tells nothing.

        If some are late, `retarget` is asked to mark more. If it does not, and most were late in ``TWICE``
        checks in a row, marks are `wrong` for good.
        """
        answers = [(result, answer) for result in results if (answer := ready(result)) is not None]
        late = [result for result, answer in answers if not answer]
        if late and retarget(late):
            self._bad = 0
            return False
        self._bad = self._bad + 1 if 2 * len(late) > len(answers) else 0
        if self._bad >= TWICE and not self.wrong:
            self.wrong = True
            logger.warning(
                "marks became ready before the work dispatched ahead of them: this backend does not run work in "
                "order, so the device times of steps are unknown from now on; pass a result of each step to "
                "goodput.observe()"
            )
        return not self.wrong
