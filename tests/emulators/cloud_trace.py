"""google.devtools.cloudtrace.v2.TraceService."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from google.cloud.trace_v2 import BatchWriteSpansRequest
from google.protobuf.empty_pb2 import Empty

from emulators.access_rules import admit_project
from emulators.records import Method, Records
from emulators.trace_rules import WRITE_RULES, Span, SpanCase, WriteCase, admit_spans

MINUTE = 60 * 10**9


class CloudTrace:
    def __init__(self, records: Records, projects: Collection[str], quota: int) -> None:
        self._records, self._projects, self._quota = records, projects, quota
        self._writes: deque[int] = deque()
        service = "/google.devtools.cloudtrace.v2.TraceService"
        batch = BatchWriteSpansRequest.pb()
        self.methods = {
            f"{service}/BatchWriteSpans": Method(
                "BatchWriteSpans", batch, lambda request: len(request.spans), self.batch
            ),
            f"{service}/CreateSpan": Method("CreateSpan", Span, lambda request: 1, self.create),
        }

    def batch(self, request: Any, now: int) -> Empty:
        self._write(request.name, request.spans, now)
        return Empty()

    def create(self, request: Any, now: int) -> Any:
        self._write(request.name, [request], now)
        return request

    def _write(self, name: str, spans: Sequence[Any], now: int) -> None:
        project = admit_project(self._records, name, self._projects)
        self._writes.append(now)
        while self._writes[0] <= now - MINUTE:
            self._writes.popleft()
        case = WriteCase(len(spans), len(self._writes), self._quota)
        refused = self._records.refuse(WRITE_RULES, case, f"{len(spans)} spans")
        if refused is not None:
            raise refused
        book = self._records.traces
        cases = [SpanCase(span, project, now, book.names, book.in_trace) for span in spans]
        book.spans += admit_spans(self._records, book, cases)
