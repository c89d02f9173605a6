"""The exceptions of this package, raised only before training starts; later errors are contained (see ``guard``)."""

from __future__ import annotations


class GoodputError(Exception):
    """Base class of this package's errors."""


class ConfigurationError(GoodputError, ValueError):
    """An argument of ``configure()`` or of the command line is wrong."""


class JournalError(GoodputError):
    """A journal cannot be read: it is missing, not one of this package, or of another version."""


class PhaseError(GoodputError, ValueError):
    """A phase is used wrongly: a step without a number, a negative number, a time that is not an integer of ns.

    Attributes:
        phase: the name of the phase.
    """

    def __init__(self, phase: str, message: str) -> None:
        super().__init__(message)
        self.phase = phase
