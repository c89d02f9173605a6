"""Choose which array of the output passed to ``goodput.observe()`` shows when the step left the device."""

from __future__ import annotations

import sys
from typing import Any

from otel_goodput._recording.observation import ALONE, Observation
from otel_goodput._runtime.guard import report_once


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
