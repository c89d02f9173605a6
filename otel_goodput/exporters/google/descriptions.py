"""Units and descriptions of metrics: a courtesy to their readers, sent beside the points and never in their way.

Without a descriptor of ours Cloud Monitoring makes one from the first point, which has neither. A role that may write
points but no descriptors, or a method that does not answer, costs no more than that.
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

HEAD_START_S: Final = 1.0  # for which the first points wait, so that they find the descriptors there
BUDGET_S: Final = 30.0  # for one


class Descriptions:
    """Creates metric descriptors in a thread of its own, until it is closed.

    It is there from the beginning: the first points may be those of the end, and from Python 3.12 on no thread can be
    started then.

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
        self._calls: SimpleQueue[bool] = SimpleQueue()  # True: there is something to do; False: that was all
        self._idle = threading.Event()
        self._idle.set()
        self._prompt = True  # whoever was late once is not waited for again until all are there
        self._trouble: tuple[object, ...] | None = None
        with suppress(RuntimeError):  # the machine is out of threads: there will be no descriptions
            threading.Thread(target=self._work, name="otel-goodput-descriptions", daemon=True).start()

    def ask(self, requests: Iterable[Any]) -> None:
        """See to it that these are there, and those that were asked for before; waits for them for a moment."""
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
        """Until all are there, or nothing more can be done at present."""
        self._idle.wait(min(max(0.0, seconds), HEAD_START_S))

    def close(self) -> None:
        """Nothing more will be asked for."""
        self._calls.put(False)

    def tell(self) -> None:
        """Points were taken meanwhile: if there is trouble, it is of the descriptions alone, and said once."""
        tried = self._idle.is_set()  # else it may be over by now
        if tried and self._trouble is not None:
            site, message, *arguments = self._trouble
            report_once(f"descriptions {site}", f"{message}. Points are written without", *arguments)

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
            answer = self._delivery(partial(self._create, request), BUDGET_S)
            if answer.outcome in (Outcome.LATE, Outcome.CIRCUIT_OPEN):
                return
            self._trouble = None
            if answer.outcome is Outcome.REFUSED:
                report_once(f"descriptor {name}", "the description of %s is not accepted: %s", name, short(answer.text))
            with self._lock:
                self._wanted.pop(name, None)
