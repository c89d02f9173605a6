"""What users hand to ``step.observe()``: which array of it tells when the step left the device."""

from __future__ import annotations

import sys
from typing import Any

from otel_goodput.guard import report_once
from otel_goodput.recording.observation import ALONE, Observation


class Outputs:
    """Chooses among the leaves of outputs, and learns which of them are donated to the next step."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # how many leaves: which of them is observed
        self._donated: set[tuple[int, int]] = set()  # (how many leaves, which) that turned out to be donated

    def choose(self, output: Any) -> tuple[Any, tuple[int, int]] | None:
        """What to watch of `output`, and its place; None where there is nothing, which is said once."""
        place = ALONE
        if not hasattr(output, "is_ready"):
            found = self._smallest(output)
            if found is None:
                report_once(
                    "observe",
                    "step.observe() was given %s, which holds no array of jax: nothing is observed",
                    type(output).__name__,
                )
                return None
            output, place = found
        if output.is_deleted():
            self._refuse(place)
            return None
        return output, place

    def _smallest(self, tree: Any) -> tuple[Any, tuple[int, int]] | None:
        """The smallest array in `tree` that is not known to be donated; of several the last: results follow state."""
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
        """Somebody has deleted what was watched."""
        self._refuse(observation.place)

    def _refuse(self, place: tuple[int, int]) -> None:
        self._donated.add(place)
        self._places.pop(place[0], None)
        report_once(
            "observe donated",
            "step.observe() was given an array that is donated to the next step, or deleted: hand over an output that "
            "nobody takes, such as the loss; until then nobody knows when steps left the device",
        )
