"""Create metric descriptors, with units and descriptions for readers, without holding up the points.

Without our descriptor Cloud Monitoring makes one from the first point, which has neither unit nor description. If our
role may not create descriptors, or the method does not answer, nothing else is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from otel_goodput.exporters.google.delivery import Delivery, Outcome, short
from otel_goodput.guard import contain, report_once

HEAD_START_S: Final = 1.0  # how long the first points wait for their descriptors
BUDGET_S: Final = 30.0  # for one descriptor


class Descriptions:
    """Creates metric descriptors in a thread of its own, until it is closed.

    The thread starts with the object: the first points may be sent at exit, where Python 3.12+ starts no threads.

    Args:
        delivery: makes the delivery of requests, given the function to which it reports failures.
        create: sends a request, given its timeout in seconds.
    """

    def __init__(
        self, delivery: Callable[[Callable[..., object]], Delivery], create: Callable[[Any, float], object]
    ) -> None:
        self._delivery = delivery(self._remember)
        self._create = create
        self._lock = threading.Lock()
        self._wanted: dict[str, Any] = {}
        self._calls: SimpleQueue[bool] = SimpleQueue()  # True: there is something to do; False: end
        self._idle = threading.Event()
        self._idle.set()
        self._prompt = True  # whether to wait; not after they were late, until all are created
        self._trouble: tuple[object, ...] | None = None
        with suppress(RuntimeError):  # no more threads: there will be no descriptions
            threading.Thread(target=self._work, name="otel-goodput-descriptions", daemon=True).start()

    def ask(self, requests: Iterable[Any]) -> None:
        """Have these created, and the missing ones of earlier calls; wait for them for `HEAD_START_S` at most."""
        with self._lock:
            self._wanted |= {request.metric_descriptor.type: request for request in requests}
            if not self._wanted:
                return
            if self._idle.is_set():
                self._idle.clear()
                self._calls.put(True)
        if self._prompt:
            self.wait(HEAD_START_S)
            self._prompt = not self._wanted

    def wait(self, seconds: float) -> None:
        """Wait until all are created or nothing more can be done now, for `seconds` and `HEAD_START_S` at most."""
        self._idle.wait(min(max(0.0, seconds), HEAD_START_S))

    def close(self) -> None:
        """End the thread."""
        self._calls.put(False)

    def tell(self) -> None:
        """Report a failure, once. Called when points were accepted, so that the failure concerns descriptors alone."""
        tried = self._idle.is_set()  # else the failure may be over by now
        if tried and self._trouble is not None:
            site, message, *arguments = self._trouble
            report_once(f"descriptions {site}", f"{message}. Points are written without it", *arguments)

    def _remember(self, *trouble: object) -> None:
        self._trouble = trouble

    def _work(self) -> None:
        while self._calls.get():
            try:
                self._send()
            except Exception as error:
                contain("descriptions of metrics", error)
            finally:
                self._idle.set()

    def _send(self) -> None:
        while True:
            with self._lock:
                name, request = next(iter(self._wanted.items()), (None, None))
            if name is None:
                self._prompt = True
                return
            self._trouble = None  # what an earlier try met may be over, and a circuit that is open tries nothing
            answer = self._delivery(partial(self._create, request), BUDGET_S)
            if answer.outcome in (Outcome.LATE, Outcome.CIRCUIT_OPEN):
                return
            if answer.outcome is Outcome.REFUSED:
                report_once(f"descriptor {name}", "the description of %s is not accepted: %s", name, short(answer.text))
            with self._lock:
                self._wanted.pop(name, None)
