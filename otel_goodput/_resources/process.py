"""The resource of this process. It is already in use while parts of it are still being detected."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Final

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.util import types

from otel_goodput import semconv
from otel_goodput._disruption.launchers import launches
from otel_goodput._disruption.metadata import metadata_host
from otel_goodput._recording.ids import attempt_trace_id, host_name, instance_id
from otel_goodput._resources import accelerators, gcp, kubernetes
from otel_goodput._runtime.guard import containing, report_once
from otel_goodput._text.redact import encodable
from otel_goodput.version import __version__

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
        self.become(self._with(known, self.schema_url))

    def wait(self, seconds: float = WAIT_S) -> bool:
        """Wait until detection is over, `seconds` at most; return whether it is."""
        thread = self._search.thread
        if thread is not None:
            thread.join(max(seconds, 0.0))
        return thread is None or not thread.is_alive()

    def merge(self, other: Resource) -> Resource:
        """Merge as OpenTelemetry does; attributes detected later appear in the result, too."""
        merged = super().merge(other)
        return self if merged is self else self._with(other.attributes or {}, merged.schema_url)

    def _with(self, known: Known, schema_url: str | None) -> DetectedResource:
        whole = DetectedResource({**self._known, **known}, (), self._fallback, schema_url)
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
    def __init__(self, detectors: Sequence[Detector]) -> None:
        self.attributes: Known = {}  # replaced, never mutated, so it needs no lock
        self.thread: threading.Thread | None = None
        if detectors:
            thread = threading.Thread(target=self._run, args=(detectors,), name="otel-goodput-resource", daemon=True)
            with suppress(RuntimeError):  # no more threads, or the interpreter is ending
                thread.start()
                self.thread = thread

    def _run(self, detectors: Sequence[Detector]) -> None:
        for detector in detectors:
            with containing("resource detection"):
                self.attributes = {**self.attributes, **detector()}


def describe(
    job_name: str,
    run_id: str,
    attempt: int,
    process: int,
    count: int,
    more: Mapping[str, types.AttributeValue] | None = None,
    *,
    role: str | None = None,
    detect: bool = True,
    traced: bool = True,
) -> DetectedResource:
    """Return the resource: the identity of this process, and where it runs. Does not wait for detection.

    ``OTEL_RESOURCE_ATTRIBUTES`` overrides what is detected, the identity overrides both, and `more` everything. Of
    several launchers, the outermost one that counts its restarts is named.

    Args:
        role: what the process does, if it was given.
        detect: whether to ask the machine; if not, only the environment is read.
        traced: whether the attempt's trace has the id that we give it; a provider of the user's own chooses another.
    """
    identity: dict[str, types.AttributeValue] = {
        semconv.SERVICE_NAME: job_name,
        semconv.SERVICE_INSTANCE_ID: instance_id(run_id, attempt, process),
        semconv.RUN_ID: run_id,
        semconv.ATTEMPT: attempt,
        **({semconv.TRACE_ID: f"{attempt_trace_id(run_id, attempt):032x}"} if traced else {}),
        semconv.PROCESS_INDEX: process,
        semconv.PROCESS_COUNT: count,
        **({semconv.ROLE: role} if role else {}),
        semconv.PROCESS_PID: os.getpid(),
        # Tells a collector that it need not derive metrics from these spans: this process exports its own.
        semconv.TELEMETRY_DISTRO_NAME: semconv.SCOPE_NAME,
        semconv.TELEMETRY_DISTRO_VERSION: __version__,
    }
    for launch in launches():
        if launch.restarts is not None:
            identity |= {semconv.LAUNCHER_NAME: launch.name, semconv.LAUNCHER_RESTARTS: launch.restarts}
            break
    detected = {**kubernetes.attributes(os.environ), **accelerators.of_environment(os.environ)}
    try:
        given = Resource.create({**identity, **(more or {})})
    except Exception as error:  # it runs OpenTelemetry's detectors in threads, and there may be no more
        lost = "OpenTelemetry's resource detectors failed, so their attributes are missing: %s: %s"
        report_once("resource", lost, type(error).__name__, error)
        given = OTELResourceDetector().detect().merge(Resource({**identity, **(more or {})}))
    return DetectedResource(
        {
            encodable(key): encodable(value) if isinstance(value, str) else value
            for key, value in {**detected, **(given.attributes or {})}.items()
        },
        _detectors() if detect else (),
        fallback={semconv.HOST_NAME: host_name()},
        schema_url=given.schema_url,
    )


def _detectors() -> list[Detector]:
    """Return the detectors for this machine; none off Google Cloud and without NVIDIA's driver."""
    detectors: list[Detector] = []
    if host := metadata_host():
        detectors.append(partial(gcp.detect, host, in_cluster=kubernetes.in_cluster(os.environ)))
    if accelerators.DRIVER.is_dir():
        detectors.append(partial(accelerators.of_driver, accelerators.DRIVER))
    return detectors
