"""Texts of a document: redacted, and by number where a text stands in many rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from otel_goodput._text.redact import secrets, without, without_secrets


class Redaction:
    """Hides credentials in texts, and leaves all other texts as they are, whatever letters they have."""

    def __init__(self) -> None:
        self._hidden = secrets(os.environ)

    def __call__(self, told: str) -> str:
        return without(self._hidden, told)

    def all(self, told: Any) -> Any:
        """Return JSON with every text redacted."""
        if isinstance(told, str):
            return self(told)
        if isinstance(told, Mapping):
            return {self(str(name)): self.all(value) for name, value in told.items()}
        if isinstance(told, (list, tuple)):
            return [self.all(value) for value in told]
        return told

    def attributes(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return attributes without secrets: whatever has a name that says so is one, too."""
        return {self(name): without_secrets(name, value, self._hidden) for name, value in told.items()}


class Names:
    """Texts by number; number 0 is the empty text."""

    def __init__(self, redacted: Redaction) -> None:
        self._redacted = redacted
        self._numbers: dict[str, int] = {"": 0}
        self.told: list[str] = [""]

    def number(self, name: str) -> int:
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = len(self.told)
            self.told.append(self._redacted(name))
        return found
