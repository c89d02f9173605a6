"""A resource part of which is still being found out while it is already in use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.util import types

from otel_goodput.guard import contain

Known = Mapping[str, types.AttributeValue]
Detector = Callable[[], Known]

WAIT_S: Final = 1.0


class DetectedResource(Resource):
    """OpenTelemetry's resource; its ``attributes`` are what is known by now.

    What detectors find never replaces what is known from the beginning, but for a fallback. Equality and hash rest on
    the beginning, so that one who groups by resource always has the same group. Nothing waits for the detectors but
    :meth:`wait`, and no lock is held that a forked child could miss: there the detection is over, whatever it found.

    Args:
        known: attributes from the beginning.
        detectors: are run in a daemon thread, one after the other, the later ones winning; no thread without any.
        fallback: attributes from the beginning that hold until something better is found.
        schema_url: of the conventions.
    """

    def __init__(
        self,
        known: Known,
        detectors: Sequence[Detector] = (),
        fallback: Known | None = None,
        schema_url: str | None = None,
    ) -> None:
        self._known = dict(known)
        self._fallback = dict(fallback or {})
        super().__init__({**self._fallback, **self._known}, schema_url)
        self._latest: tuple[Known, Resource] = ({}, Resource.get_empty())
        self._hash: int | None = None
        self._search = _Search(detectors)

    @property
    def attributes(self) -> Known:
        """What is known by now."""
        found = self._search.found
        if not found:
            return super().attributes
        seen, whole = self._latest
        if seen is not found:
            whole = Resource({**self._fallback, **found, **self._known})
            self._latest = found, whole
        return whole.attributes

    def wait(self, seconds: float = WAIT_S) -> bool:
        """Wait until detection is over, `seconds` at most; whether it is."""
        return self._search.wait(seconds)

    def merge(self, other: Resource) -> Resource:
        """As OpenTelemetry's; the result, too, learns what is still to be found."""
        merged = super().merge(other)
        if merged is self:
            return self
        whole = DetectedResource({**self._known, **(other.attributes or {})}, (), self._fallback, merged.schema_url)
        whole._search = self._search
        return whole

    def __hash__(self) -> int:
        # The SDK makes JSON of all attributes each time, and its encoder asks for it with every span.
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash

    def __deepcopy__(self, memo: object) -> DetectedResource:
        return copy(self)  # nothing in it changes but what is found, and that for all


class _Search:
    """Runs detectors, and has what they found."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self.found: Known = {}  # replaced, never changed: it needs no lock
        self._thread: threading.Thread | None = None
        if not detectors:
            return
        thread = threading.Thread(target=self._run, args=(detectors,), name="otel-goodput-resource", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            return
        self._thread = thread

    def _run(self, detectors: Sequence[Detector]) -> None:
        for detector in detectors:
            try:
                self.found = {**self.found, **detector()}
            except Exception as error:
                contain("resource detection", error)

    def wait(self, seconds: float) -> bool:
        if self._thread is None:
            return True
        self._thread.join(max(seconds, 0.0))
        return not self._thread.is_alive()
