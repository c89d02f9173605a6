"""Send items in batches, so that a bad item does not cost the others of its request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from otel_goodput.exporters.google.delivery import Delivery, Outcome, Send

# After so many items were rejected and none accepted, a rejected batch is dropped without being halved.
HOPELESS: Final = 16


class Batches:
    """Sends items; a rejected batch is halved until the bad items are alone.

    Args:
        delivery: delivers requests to the service.
        request: makes one request of some items; returns the function that sends it.
        name: returns the name of an item, for people.

    Attributes:
        refused: number of items that the service rejected.
    """

    def __init__(
        self, delivery: Delivery, request: Callable[[Sequence[Any]], Send], name: Callable[[Any], str]
    ) -> None:
        self._delivery = delivery
        self._request = request
        self._name = name
        self.refused = 0

    def send(self, items: Sequence[Any], budget_s: float) -> bool:
        """Send items within `budget_s` seconds. Return False if a request could not be delivered."""
        until = time.monotonic() + budget_s
        waiting = [items] if items else []
        taken, before = False, self.refused
        while waiting:
            batch = waiting.pop()
            answer = self._delivery.batch(self._request, batch, until - time.monotonic())
            if answer.outcome is Outcome.DELIVERED:
                taken = True
            elif answer.outcome is not Outcome.REFUSED:
                return False
            elif len(batch) == 1 or (not taken and self.refused - before >= HOPELESS):
                self._refuse(batch, answer.text)
            else:
                middle = len(batch) // 2
                waiting += [batch[middle:], batch[:middle]]
        return True

    def _refuse(self, batch: Sequence[Any], text: str) -> None:
        self.refused += len(batch)
        self._delivery.refused(f"span {self._name(batch[0])!r}", len(batch), text)
