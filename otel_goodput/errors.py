"""What this package raises, and only before training starts: afterwards its errors are contained (see ``guard``)."""

from __future__ import annotations


class GoodputError(Exception):
    """Base of this package's own errors."""


class ConfigurationError(GoodputError, ValueError):
    """An argument of ``configure()`` or of the command line is wrong."""


class JournalError(GoodputError):
    """A journal cannot be read: it is missing, foreign, or of another version."""


class PhaseError(GoodputError, ValueError):
    """A phase is used wrongly: a step without a number, a negative number, a time that is no integer of ns.

    Attributes:
        phase: its name.
    """

    def __init__(self, phase: str, message: str) -> None:
        super().__init__(message)
        self.phase = phase
