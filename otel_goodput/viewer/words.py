"""Texts of a document: redacted, and by number where a text stands in many rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from otel_goodput.text.redact import HIDDEN, secrets, without_credentials

_MOST: Final = 4096  # texts that are remembered
_SHORT: Final = 256  # letters of such a text


class Redaction:
    """Hides credentials in texts, and leaves all other texts as they are, whatever letters they have."""

    def __init__(self) -> None:
        self._hidden = secrets(os.environ)
        self._known: dict[str, str] = {}  # the same names come again and again

    def __call__(self, told: str) -> str:
        found = self._known.get(told)
        if found is None:
            found = told
            for one in self._hidden:
                found = found.replace(one, HIDDEN)
            found = without_credentials(found)
            if len(self._known) >= _MOST:
                self._known.clear()
            if len(told) <= _SHORT:
                self._known[told] = found
        return found

    def all(self, told: Any) -> Any:
        """Return JSON with every text redacted."""
        if isinstance(told, str):
            return self(told)
        if isinstance(told, Mapping):
            return {self(str(name)): self.all(value) for name, value in told.items()}
        if isinstance(told, (list, tuple)):
            return [self.all(value) for value in told]
        return told


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
