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
    1: "an error, such as a run that is not there; doctor: a problem was found",
    USAGE: "wrong use of the command",
    DAMAGED: "a part of a journal is damaged and could not be read; the rest is shown",
    UNKNOWN: "compare --fail-if: no condition holds, but one asks for a figure that is not known",
    HOLDS: "compare --fail-if: a condition holds",
    130: "interrupted with Ctrl-C",
}
