"""The resource of this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.util import types

from otel_goodput import semconv
from otel_goodput._disruption.launchers import launches
from otel_goodput._disruption.metadata import metadata_host
from otel_goodput._recording.ids import attempt_trace_id, host_name, instance_id
from otel_goodput._resources import accelerators, gcp, kubernetes
from otel_goodput._resources.detected import DetectedResource, Detector
from otel_goodput._runtime.guard import report_once
from otel_goodput._text.redact import encodable
from otel_goodput.version import __version__


def describe(
    job_name: str,
    run_id: str,
    attempt: int,
    process: int,
    count: int,
    more: Mapping[str, types.AttributeValue] | None = None,
    *,
    detect: bool = True,
    traced: bool = True,
) -> DetectedResource:
    """Return the resource: the identity of this process, and where it runs. Does not wait for detection.

    ``OTEL_RESOURCE_ATTRIBUTES`` overrides what is detected, the identity overrides both, and `more` everything. Of
    several launchers, the outermost one that counts its restarts is named.

    Args:
        job_name, run_id, attempt, process, count, more: the identity, and the user's own attributes.
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
    given = _created({**identity, **(more or {})})
    return DetectedResource(
        {
            encodable(key): encodable(value) if isinstance(value, str) else value
            for key, value in {**detected, **(given.attributes or {})}.items()
        },
        _detectors(os.environ) if detect else (),
        fallback={semconv.HOST_NAME: host_name()},
        schema_url=given.schema_url,
    )


def _created(attributes: Mapping[str, types.AttributeValue]) -> Resource:
    """Return OpenTelemetry's resource with these attributes; without its detectors if one of them cannot be run."""
    try:
        return Resource.create(attributes)
    except Exception as error:  # it runs them in threads, and there may be no more
        lost = "OpenTelemetry's resource detectors failed, so their attributes are missing: %s: %s"
        report_once("resource", lost, type(error).__name__, error)
        return OTELResourceDetector().detect().merge(Resource(attributes))


def _detectors(environ: Mapping[str, str]) -> list[Detector]:
    """Return the detectors for this machine; none off Google Cloud and without NVIDIA's driver."""
    detectors: list[Detector] = []
    host = metadata_host(environ)
    if host is not None:
        detectors.append(partial(gcp.detect, host, in_cluster=kubernetes.in_cluster(environ)))
    if accelerators.DRIVER.is_dir():
        detectors.append(partial(accelerators.of_driver, accelerators.DRIVER))
    return detectors
