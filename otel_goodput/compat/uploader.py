"""A thread that does something at an interval until it is stopped, and once more then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from otel_goodput._runtime.guard import contain, report_once, started

LONGEST_S: Final = 60.0  # to wait at a stop, where the user sets no limit: a hanging network must not keep the job


class Uploader:
    """Calls `upload` every `interval` seconds. Start and stop it as often as you like.

    Args:
        name: for messages.
        interval: seconds.
        upload: may raise; that is logged once, and it is called again.
        finish: called after the last upload.
    """

    def __init__(
        self, name: str, interval: float, upload: Callable[[], None], finish: Callable[[], None] = lambda: None
    ) -> None:
        self._name = name
        self._interval = min(max(0.1, float(interval)), threading.TIMEOUT_MAX)
        self._upload = upload
        self._finish = finish
        self._stopping = threading.Event()
        self._once_more = threading.Event()  # at the stop
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()  # never held while anything is waited for

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start it, unless it is running."""
        with self._changing:
            if not self.running:
                self._begin()

    def _begin(self) -> threading.Thread:
        # Of its own: a thread that was given up at a stop must not go on because another one begins.
        work = self._stopping, self._once_more = threading.Event(), threading.Event()
        thread = threading.Thread(target=self._run, args=work, name=f"otel-goodput-{self._name}", daemon=True)
        if started(thread, "uploads wait until the end"):
            self._thread = thread
        return thread

    def stop(self, *, last: bool, seconds: float | None) -> None:
        """Stop it, after uploading once more if `last` is true, also if it never ran; wait `seconds` at most."""
        with self._changing:
            thread = self._thread if self.running else None
            if thread is None:
                if not last:
                    return
                thread = self._begin()
            self._thread = None
            if last:
                self._once_more.set()
            self._stopping.set()
        limit = LONGEST_S if seconds is None else max(0.0, seconds)
        thread.join(limit)
        if thread.is_alive():
            text = "the last upload of %s took more than %g s and was given up"
            report_once(f"upload {self._name}", text, self._name, limit)

    def _run(self, stopping: threading.Event, once_more: threading.Event) -> None:
        while not stopping.wait(self._interval):
            self._do(self._upload)
        if once_more.is_set():
            self._do(self._upload)
        self._do(self._finish)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ValueError as error:  # there is nothing to upload yet
            report_once(f"upload {self._name} {error}", "nothing to upload of %s: %s", self._name, error)
        except Exception as error:
            contain(f"upload of {self._name}", error)
