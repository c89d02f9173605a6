"""A resource that is already in use while parts of it are still being detected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.util import types

from otel_goodput._runtime.guard import contain

Known = Mapping[str, types.AttributeValue]
Detector = Callable[[], Known]

WAIT_S: Final = 1.0


class DetectedResource(Resource):
    """OpenTelemetry's resource, with ``attributes`` that grow as they are detected.

    Detected attributes never replace initial ones, except those in `fallback`. Equality and hash use only the initial
    attributes, so that code that groups by resource always sees the same group. Only :meth:`wait` waits for the
    detectors. No lock is held that a forked child could find locked; in the child, detection is over with what was
    found before the fork.

    Args:
        known: initial attributes.
        detectors: run in a daemon thread, one after another, the later ones winning; without any, there is no thread.
        fallback: initial attributes that hold until others are detected.
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
        """The attributes known by now."""
        detected = self._search.attributes
        if not detected:
            return super().attributes
        seen, whole = self._latest
        if seen is not detected:
            whole = Resource({**self._fallback, **detected, **self._known})
            self._latest = detected, whole
        return whole.attributes

    def become(self, other: DetectedResource) -> None:
        """Take the attributes of `other`: what refers to this resource describes the same process from now on."""
        super().__init__(dict(other._attributes), other.schema_url)
        self._known, self._fallback, self._search = other._known, other._fallback, other._search
        self._latest, self._hash = ({}, Resource.get_empty()), None

    def change(self, known: Known) -> None:
        """Replace or add initial attributes; detection goes on."""
        changed = DetectedResource({**self._known, **known}, (), self._fallback, self.schema_url)
        changed._search = self._search
        self.become(changed)

    def wait(self, seconds: float = WAIT_S) -> bool:
        """Wait until detection is over, `seconds` at most; return whether it is."""
        return self._search.wait(seconds)

    def merge(self, other: Resource) -> Resource:
        """Merge as OpenTelemetry does; attributes detected later appear in the result, too."""
        merged = super().merge(other)
        if merged is self:
            return self
        whole = DetectedResource({**self._known, **(other.attributes or {})}, (), self._fallback, merged.schema_url)
        whole._search = self._search
        return whole

    def __hash__(self) -> int:
        # Cached: the SDK serializes all attributes for each call, and its encoder calls this for every span.
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash

    def __deepcopy__(self, memo: object) -> DetectedResource:
        return copy(self)  # only the detected attributes change, and they do for all copies


class _Search:
    """Runs detectors, and keeps what they found."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self.attributes: Known = {}  # replaced, never mutated, so it needs no lock
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
                self.attributes = {**self.attributes, **detector()}
            except Exception as error:
                contain("resource detection", error)

    def wait(self, seconds: float) -> bool:
        if self._thread is None:
            return True
        self._thread.join(max(seconds, 0.0))
        return not self._thread.is_alive()
