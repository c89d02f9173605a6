"""The resource of this process of the job."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource
from opentelemetry.util import types

from otel_goodput import semconv
from otel_goodput.disruption.launchers import launches
from otel_goodput.spans.ids import instance_id


def describe(
    job_name: str,
    run_id: str,
    attempt: int,
    process: int,
    count: int,
    more: Mapping[str, types.AttributeValue] | None = None,
) -> Resource:
    """Identity of this process; ``OTEL_RESOURCE_ATTRIBUTES`` adds to it, `more` wins over everything.

    Of several launchers the outermost one that counts its restarts is told of.
    """
    mine: dict[str, types.AttributeValue] = {
        semconv.SERVICE_NAME: job_name,
        semconv.SERVICE_INSTANCE_ID: instance_id(run_id, attempt, process),
        semconv.RUN_ID: run_id,
        semconv.ATTEMPT: attempt,
        semconv.PROCESS_INDEX: process,
        semconv.PROCESS_COUNT: count,
        semconv.HOST_NAME: socket.gethostname(),
        semconv.PROCESS_PID: os.getpid(),
    }
    for launch in launches():
        if launch.restarts is not None:
            mine |= {semconv.LAUNCHER_NAME: launch.name, semconv.LAUNCHER_RESTARTS: launch.restarts}
            break
    return Resource.create({**mine, **(more or {})})
