"""Units and descriptions of metrics: a courtesy to their readers, sent beside the points and never in their way.

Without a descriptor of ours Cloud Monitoring makes one from the first point, which has neither. A role that may write
points but no descriptors, or a method that does not answer, costs no more than that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from otel_goodput.exporters.google.delivery import Delivery, Outcome, short
from otel_goodput.guard import report_once

HEAD_START_S: Final = 1.0  # for which the first points wait, so that they find the descriptors there
BUDGET_S: Final = 30.0  # for one


class Descriptions:
    """Creates metric descriptors in a thread of its own.

    Args:
        delivery: makes the delivery of them, given what is told of its trouble.
        create: sends the request for one, given the seconds that the answer may take.
    """

    def __init__(
        self, delivery: Callable[[Callable[..., object]], Delivery], create: Callable[[Any, float], object]
    ) -> None:
        self._delivery = delivery(self._remember)
        self._create = create
        self._lock = threading.Lock()
        self._wanted: dict[str, Any] = {}
        self._thread: threading.Thread | None = None
        self._prompt = True  # whoever was late once is not waited for again until all are there
        self._trouble: tuple[object, ...] | None = None

    def ask(self, requests: Iterable[Any]) -> None:
        """See to it that these are there, and those that were asked for before; waits for them for a moment."""
        with self._lock:
            self._wanted |= {request.metric_descriptor.type: request for request in requests}
            if not self._wanted:
                return
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._send, name="otel-goodput-descriptions", daemon=True)
                self._thread.start()
        if self._prompt:
            self.wait(HEAD_START_S)
            self._prompt = not self._wanted

    def wait(self, seconds: float) -> None:
        """Until all are there, or nothing more can be done at present."""
        if self._thread is not None:
            self._thread.join(min(max(0.0, seconds), HEAD_START_S))

    def tell(self) -> None:
        """Points were taken meanwhile: if there is trouble, it is of the descriptions alone, and said once."""
        tried = self._thread is None or not self._thread.is_alive()  # else it may be over by now
        if tried and self._trouble is not None:
            site, message, *arguments = self._trouble
            report_once(f"descriptions {site}", f"{message}. Points are written without it", *arguments)

    def _remember(self, *trouble: object) -> None:
        self._trouble = trouble

    def _send(self) -> None:
        while True:
            with self._lock:
                name, request = next(iter(self._wanted.items()), (None, None))
            if name is None:
                self._prompt = True
                return
            answer = self._delivery(partial(self._create, request), BUDGET_S)
            if answer.outcome in (Outcome.LATE, Outcome.CIRCUIT_OPEN):
                return
            self._trouble = None
            if answer.outcome is Outcome.REFUSED:
                report_once(f"descriptor {name}", "the description of %s is not accepted: %s", name, short(answer.text))
            with self._lock:
                self._wanted.pop(name, None)
