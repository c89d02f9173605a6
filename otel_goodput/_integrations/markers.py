"""What the device clock watches: marks behind dispatched work, or arrays that users observe.

:class:`Marker` is all that the clock needs of a runtime. The modules ``jax_marker`` and ``torch_marker`` implement it;
to add another runtime, implement it and enter it in the table of ``async_runtimes``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from types import MethodType
from typing import Any, Final, Protocol

from otel_goodput._recording.observation import ALONE, Observation
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.redact import redacting_logger

logger = redacting_logger("otel_goodput")

COLLECTS_IN_C: Final = sys.version_info < (3, 12)  # garbage is collected where C code allocates, too
FIRST_CHECKS: Final = 3  # marks whose order is checked at the beginning;
CHECKED: Final = 1000  # then one in so many,
UNCERTAIN_CHECKED: Final = 4  # or, if the order is uncertain, in so few
TWICE: Final = 2  # checks in a row with most results late; a single one may be due to a transfer for a later step


class Mark(Protocol):
    """Becomes ready when all that was dispatched before it is done. Only the clock has references to it."""

    def is_ready(self) -> bool:
        """Return whether the mark is ready; never wait."""

    def is_deleted(self) -> bool:
        """Return whether :meth:`is_ready` can no longer be called; False if that cannot happen."""


class Marker(Protocol):
    """Sets marks in one runtime.

    Attributes:
        waits: its marks have a ``block_until_ready()`` that releases the GIL, so that a thread can wait for a mark
            instead of polling it.
        order_uncertain: a mark may be ready before the work in front of it, so the order must be checked often.
        prepared: whether marks can be set without :meth:`prepare`.
    """

    waits: bool
    order_uncertain: bool

    @property
    def prepared(self) -> bool: ...

    def prepare(self) -> bool:
        """Prepare what marks need, on a background thread; it may take long. Return False if there will be no marks."""

    def mark(self) -> Mark | None:
        """Set a mark behind what this thread has dispatched so far; return None if that is impossible now.

        Never waits for the device, starts a runtime, or talks to another process.
        """

    def results(self) -> Sequence[Mark]:
        """Return some results of the latest work, to check the order with; none if the order is documented."""

    def mark_devices_of(self, late: Sequence[Any]) -> bool:
        """From now on also mark the devices of the results `late`, which were not ready when the mark behind them was.

        Returns: False if there is no more to mark.
        """

    def close(self) -> None:
        """Undo what was changed in the runtime."""


def ready(array: Any) -> bool | None:
    """Return whether an array or a mark has left the device; None if it was deleted, so that nobody can know."""
    # jax crashes the process if it is asked whether a deleted array is ready, or if the array is deleted while it is
    # asked; and another thread can delete it at any bytecode. So from the first question to the last answer no
    # bytecode may run: not ours, and not that of a garbage collection, whose callbacks (jax has one) are bytecode.
    # `zip` asks one question after the other, in C, and stops at the first that is answered by its sentinel.
    is_ready = array.is_ready
    asking: Iterator[Any] = islice(zip(iter(array.is_deleted, True), iter(is_ready, None), strict=False), 1)
    pausing = COLLECTS_IN_C and not isinstance(is_ready, MethodType) and gc.isenabled()
    if pausing:
        asking = chain(iter(gc.disable, None), asking, iter(gc.enable, None))
    try:
        answers = list(asking)
    except Exception:
        if pausing:
            gc.enable()
        if array.is_deleted():  # donated meanwhile, by a thread that did not hold the GIL
            return None
        raise
    return answers[0][1] if answers else None


class CombinedMark:
    """Several marks as one, of one runtime or of several."""

    def __init__(self, marks: Sequence[Any]) -> None:
        self._marks = marks

    def is_deleted(self) -> bool:
        return any(mark.is_deleted() for mark in self._marks)

    def is_ready(self) -> bool:
        return all(ready(mark) for mark in self._marks)

    def block_until_ready(self) -> None:
        for mark in self._marks:
            mark.block_until_ready()


class MarkingOrder:
    """Checks that marks become ready in order, with results of the work before them.

    Attributes:
        wrong: marks became ready before the work in front of them, so they cannot be trusted.
    """

    def __init__(self) -> None:
        self._marks = 0
        self._bad = 0
        self.wrong = False

    def due(self, marker: Marker) -> bool:
        """Count a mark that was set; return whether it is to be checked."""
        self._marks = count = self._marks + 1
        each = UNCERTAIN_CHECKED if marker.order_uncertain else CHECKED
        return count <= FIRST_CHECKS or not count % each or 0 < self._bad < TWICE

    def check(self, results: Sequence[Any], marker: Marker) -> bool:
        """Check that `results` are ready, now that the mark behind them is; return False if that mark says nothing.

        If some are late, the `marker` marks their devices, too. If it cannot, and most were late in ``TWICE`` checks
        in a row, marks are `wrong` for good.
        """
        answers = [(result, answer) for result in results if (answer := ready(result)) is not None]
        late = [result for result, answer in answers if not answer]
        if late and marker.mark_devices_of(late):
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


class Outputs:
    """Chooses one of the leaves of an output, and learns which leaves are donated to the next step."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # number of leaves: index of the one that is observed
        self._donated: set[tuple[int, int]] = set()  # (number of leaves, index) of leaves that turned out to be donated

    def choose(self, output: Any) -> tuple[Any, tuple[int, int]] | None:
        """Return the array to watch and its place (number of leaves, index); None, logged once, if there is none."""
        place = ALONE
        if not hasattr(output, "is_ready"):
            smallest = self._smallest(output)
            if smallest is None:
                report_once(
                    "observe",
                    "goodput.observe() was given %s, which contains no jax array: nothing is observed",
                    type(output).__name__,
                )
                return None
            output, place = smallest
        if output.is_deleted():
            self._refuse(place)
            return None
        return output, place

    def _smallest(self, tree: Any) -> tuple[Any, tuple[int, int]] | None:
        """Return the smallest array not known to be donated. Of several the last, because results follow state."""
        jax = sys.modules.get("jax")
        if jax is None:
            return None
        leaves = jax.tree_util.tree_leaves(tree)
        count = len(leaves)
        known = self._places.get(count)
        if known is not None and hasattr(leaves[known], "is_ready"):
            return leaves[known], (count, known)
        arrays = [
            at for at, leaf in enumerate(leaves) if hasattr(leaf, "is_ready") and (count, at) not in self._donated
        ]
        if not arrays:
            return None
        best = min(reversed(arrays), key=lambda at: leaves[at].size)
        self._places[count] = best
        return leaves[best], (count, best)

    def refuse(self, observation: Observation) -> None:
        """Choose another leaf from now on: the array of `observation` was donated or deleted."""
        self._refuse(observation.place)

    def _refuse(self, place: tuple[int, int]) -> None:
        self._donated.add(place)
        self._places.pop(place[0], None)
        report_once(
            "observe donated",
            "goodput.observe() was given an array that is donated to the next step, or deleted: pass an output that is "
            "not donated, such as the loss; until then, it is unknown when steps end on the device",
        )
