"""Cloud Trace's rules: each by a span that breaks it and one that is just good enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.cloud.trace_v2 import BatchWriteSpansRequest, Span

from emulators.clients import trace_client
from emulators.examples import NOW, PROJECT, SECOND, TRACE, at, span
from emulators.google import GoogleEmulator
from emulators.trace_rules import SPAN_RULES, WRITE_RULES


@pytest.fixture
def google() -> Iterator[GoogleEmulator]:
    with GoogleEmulator(now=lambda: NOW, span_quota=2) as emulator:
        yield emulator


def text(value: str) -> dict[str, Any]:
    return {"string_value": {"value": value}}


def attributes(count: int) -> dict[str, Any]:
    return {"attribute_map": {f"k{number}": {"int_value": number} for number in range(count)}}


# By rule: what breaks it, and what is just good enough.
SPANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "trace.name": ({"name": f"{PROJECT}/traces/{'0' * 32}/spans/{2:016x}"}, {}),
    "trace.span_id": ({"span_id": f"{3:016x}"}, {}),
    "trace.parent": ({"parent_span_id": "abc"}, {"parent_span_id": "00000000000000ab"}),
    "trace.display_name": ({"display_name": {"value": ""}}, {"display_name": {"value": "训练"}}),
    "trace.display_name_bytes": ({"display_name": {"value": "é" * 513}}, {"display_name": {"value": "é" * 512}}),
    "trace.times": ({"end_time": at(-3)}, {"end_time": at(-2)}),
    "trace.past": ({"start_time": at(-14 * 86400 - 1)}, {"start_time": at(-14 * 86400)}),
    "trace.future": ({"end_time": at(3 * 86400 + 1)}, {"end_time": at(3 * 86400)}),
    "trace.attributes": ({"attributes": attributes(1025)}, {"attributes": attributes(1024)}),
    "trace.events": (
        {"time_events": {"time_event": [{"time": at(-1)}] * 257}},
        {"time_events": {"time_event": [{"time": at(-1)}] * 256}},
    ),
    "trace.links": (
        {"links": {"link": [{"trace_id": TRACE, "span_id": "00000000000000ab"}] * 129}},
        {"links": {"link": [{"trace_id": TRACE, "span_id": "00000000000000ab"}] * 128}},
    ),
}
MORE_SPANS = [
    ("trace.name", {"name": f"projects/other/traces/{TRACE}/spans/{2:016x}"}),
    ("trace.name", {"name": f"{PROJECT}/traces/{TRACE}/spans/xyz"}),
    ("trace.times", {"start_time": None}),
    ("trace.times", {"end_time": None}),
    ("trace.attributes", {"attributes": {"attribute_map": {"k" * 513: {"int_value": 1}}}}),
    ("trace.attributes", {"attributes": {"attribute_map": {"k": text("v" * (64 * 1024 + 1))}}}),
]


@pytest.mark.parametrize(("rule", "fields"), [*((rule, bad) for rule, (bad, _) in SPANS.items()), *MORE_SPANS])
def test_one_bad_span_refuses_all(google: GoogleEmulator, rule: str, fields: dict[str, Any]) -> None:
    with trace_client(google.endpoint) as client, pytest.raises(GoogleAPICallError) as caught:
        client.batch_write_spans(name=PROJECT, spans=[span(1), span(2, **fields)])
    assert caught.value.grpc_status_code is grpc.StatusCode.INVALID_ARGUMENT
    assert [refusal.rule for refusal in google.refusals] == [rule]
    assert google.spans == []
    assert [(request.method, request.items, request.code) for request in google.requests] == [
        ("BatchWriteSpans", 2, "INVALID_ARGUMENT")
    ]


@pytest.mark.parametrize("rule", SPANS)
def test_good_spans_are_stored(google: GoogleEmulator, rule: str) -> None:
    with trace_client(google.endpoint) as client:
        client.batch_write_spans(name=PROJECT, spans=[span(1), span(2, **SPANS[rule][1])])
        client.create_span(span(3))
    assert [stored.span_id for stored in google.spans] == [f"{number:016x}" for number in (1, 2, 3)]
    assert google.refusals == google.notes == []


def test_a_span_that_comes_twice_is_noted(google: GoogleEmulator) -> None:
    with trace_client(google.endpoint) as client:
        client.batch_write_spans(name=PROJECT, spans=[span(1), span(1)])
        client.batch_write_spans(name=PROJECT, spans=[span(2), span(1)])
    assert [stored.span_id for stored in google.spans] == [f"{number:016x}" for number in (1, 2)]
    assert [note.rule for note in google.notes] == ["trace.duplicate"] * 2


def test_a_trace_shows_so_many_spans(google: GoogleEmulator) -> None:
    with trace_client(google.endpoint) as client:
        whole = BatchWriteSpansRequest.pb()(name=PROJECT)
        for number in range(1, 10_002):
            one = whole.spans.add()
            one.CopyFrom(Span.pb(span()))
            one.span_id = f"{number:016x}"
            one.name = one.name[:-16] + one.span_id
        client.batch_write_spans(BatchWriteSpansRequest.wrap(whole))
        another = f"{PROJECT}/traces/{TRACE[::-1]}/spans/{1:016x}"
        client.batch_write_spans(name=PROJECT, spans=[span(name=another)])
    assert [note.rule for note in google.notes] == ["trace.spans"]
    assert len(google.spans) == 10_001, "one of them of another trace"


def test_a_request_holds_so_many_spans(google: GoogleEmulator) -> None:
    one = Span.pb(span())
    with trace_client(google.endpoint) as client:
        many = BatchWriteSpansRequest.pb()(name=PROJECT, spans=[one] * 25_000)
        client.batch_write_spans(BatchWriteSpansRequest.wrap(many))
        many.spans.append(one)
        with pytest.raises(GoogleAPICallError):
            client.batch_write_spans(BatchWriteSpansRequest.wrap(many))
    assert [refusal.rule for refusal in google.refusals] == ["trace.batch"]
    assert len(google.spans) == 1


def test_writes_of_spans_have_a_quota_by_the_minute() -> None:
    now = NOW
    with GoogleEmulator(now=lambda: now, span_quota=2) as google, trace_client(google.endpoint) as client:
        for number in (1, 2, 3):
            if number == 3:
                with pytest.raises(GoogleAPICallError) as caught:
                    client.create_span(span(number), retry=None)
                assert caught.value.grpc_status_code is grpc.StatusCode.RESOURCE_EXHAUSTED
                now += 60 * SECOND
            client.create_span(span(number))
        assert [refusal.rule for refusal in google.refusals] == ["trace.quota"]
        assert len(google.spans) == 3


def test_every_rule_is_shown() -> None:
    assert {rule.name for rule in (*SPAN_RULES, *WRITE_RULES)} == {
        *SPANS,
        "trace.duplicate",
        "trace.spans",
        "trace.batch",
        "trace.quota",
    }
