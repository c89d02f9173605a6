"""Items that go in one request, of which a bad one must not take the others along."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from otel_goodput.exporters.google.delivery import Delivery, Outcome, Send

# So many of a batch refused one by one, and not one taken: the rest is not looked at.
HOPELESS: Final = 16


class Batches:
    """Sends items; a batch that is refused is halved until what is bad is alone.

    Args:
        delivery: brings requests to the service.
        request: makes of some items what sends them in one request.
        name: of an item, for people.

    Attributes:
        refused: how many items the service did not want.
    """

    def __init__(
        self, delivery: Delivery, request: Callable[[Sequence[Any]], Send], name: Callable[[Any], str]
    ) -> None:
        self._delivery = delivery
        self._request = request
        self._name = name
        self.refused = 0

    def send(self, items: Sequence[Any], budget_s: float) -> bool:
        """False where the service could not be reached in time, or lets nothing through."""
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
