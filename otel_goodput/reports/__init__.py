"""Reports: an account as text, JSON or HTML, made by the same rules for a live job and for its journal."""

from collections.abc import Callable
from typing import Final, TypeAlias

ProgressCallback: TypeAlias = "Callable[[float, float, str], None]"
"""Called with how much is done, how much there is (0: not known), and what is being done."""

SPANS: Final = 200_000  # steps and phases that a page shows one by one


def no_progress(done: float, total: float, what: str) -> None:
    """Show nothing."""
