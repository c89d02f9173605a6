"""Clients that send spans and nothing else, as other languages and libraries do: raw OTLP/HTTP with JSON."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from typing import Any

from otel_goodput import semconv
from otel_goodput.semconv import Phase

# The connectors tell every so often what they have measured; sooner than in a life that is longer than a test.
SOON = [f"connectors::span_metrics/{each}::metrics_flush_interval: 250ms" for each in ("steps", "phases")]
Json = dict[str, Any]


def value(of: Any) -> Json:
    match of:
        case bool():
            return {"boolValue": of}
        case int():
            return {"intValue": str(of)}
        case _:
            return {"stringValue": of}


def attributes(given: Json) -> list[Json]:
    return [{"key": key, "value": value(each)} for key, each in given.items()]


def span(phase: str | None, seconds: float, *, name: str = "", status: int = 0, state: str = "", **more: Any) -> Json:
    """A span of a phase, or of none; further attributes have underscores for their dots. `state` is its tracestate."""
    now = time.time_ns()
    given = {key.replace("_", "."): each for key, each in more.items()}
    return {
        "traceId": os.urandom(16).hex(), "spanId": os.urandom(8).hex(), "name": name or phase, "kind": 1,
        "startTimeUnixNano": str(now - round(seconds * 1e9)), "endTimeUnixNano": str(now),
        "attributes": attributes(({semconv.GOODPUT_PHASE: phase} if phase else {}) | given),
        "status": {"code": status} if status else {}, "traceState": state,
    }  # fmt: skip


def step(seconds: float, **more: Any) -> Json:
    return span(Phase.STEP, seconds, **more)


def send(address: str, resource: Json, *spans: Json) -> None:
    """To the OTLP/HTTP receiver at the address (host:port); it must take all of them."""
    scopes = [{"scope": {"name": "another-library"}, "spans": spans}]
    body = {"resourceSpans": [{"resource": {"attributes": attributes(resource)}, "scopeSpans": scopes}]}
    request = urllib.request.Request(
        f"http://{address}/v1/traces", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert (answer.status, json.load(answer)) == (200, {"partialSuccess": {}})
