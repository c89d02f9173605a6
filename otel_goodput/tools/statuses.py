"""What the command ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

USAGE: Final = 2
DAMAGED: Final = 3  # something had to be left out
UNKNOWN: Final = 4  # a figure of a condition is not known
HOLDS: Final = 5  # a condition holds

EXIT_STATUSES: Final[Mapping[int, str]] = {
    0: "success",
    1: "an error, such as a missing run; doctor: a problem was found",
    USAGE: "invalid use of the command",
    DAMAGED: "part of a journal is damaged and could not be read; the rest is shown",
    UNKNOWN: "compare --fail-if: no condition holds, but one uses an unknown figure",
    HOLDS: "compare --fail-if: a condition holds",
    130: "interrupted with Ctrl-C",
}
