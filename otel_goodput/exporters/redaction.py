"""Hides secrets in the spans of phases before an exporter gets them: in names, attributes, events and the status.

Spans of the user's own instrumentation are theirs to send, and stay as they are.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link

from otel_goodput.exporters.fitting import counting, replaced
from otel_goodput.semconv import SCOPE_NAME
from otel_goodput.text.redact import secrets, without, without_secrets


class Redaction:
    """Returns spans without what looks like a secret, is called one, or is one of this process's environment."""

    def __init__(self) -> None:
        self._hidden = secrets(os.environ)

    def __call__(self, span: ReadableSpan) -> ReadableSpan:
        scope = span.instrumentation_scope
        if scope is None or scope.name != SCOPE_NAME:
            return span
        given, description = span.attributes, span.status.description
        name, attributes = without(self._hidden, span.name), self._attributes(given)
        said = None if description is None else without(self._hidden, description)
        events, links = [self._event(event) for event in span.events], [self._link(link) for link in span.links]
        same = name == span.name and attributes is given and said == description
        if same and all(map(operator.is_, (*events, *links), (*span.events, *span.links))):
            return span
        return replaced(span, name, attributes, events, said, links=links)

    def _attributes(self, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        changed = {}
        for name, value in (given or {}).items():
            shown = without_secrets(name, value, self._hidden)
            if shown != (list(value) if isinstance(value, tuple) else value):
                changed[name] = shown
        return {**given, **changed} if given and changed else given

    def _link(self, link: Link) -> Link:
        attributes = self._attributes(link.attributes)
        return (
            link if attributes is link.attributes else Link(link.context, counting(attributes, link.dropped_attributes))
        )

    def _event(self, event: Event) -> Event:
        name, attributes = without(self._hidden, event.name), self._attributes(event.attributes)
        if name == event.name and attributes is event.attributes:
            return event
        return Event(name, counting(attributes, event.dropped_attributes), event.timestamp)
