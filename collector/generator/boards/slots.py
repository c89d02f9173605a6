"""The places in a template that ``otel-goodput dashboards`` fills: thresholds and rolling windows.

A slot is ``<<NAME>>``, or ``<<NAME:SPEC>>`` with a format specification as in ``format()``. The names are those of
``values`` in ``otel_goodput/_tools/dashboards.py``.
"""

from __future__ import annotations

from typing import Final

REPEATED: Final = "repeated"  # marks a panel that is there once for each rolling window


class Slot(str):
    """A slot, in text and in place of a value."""

    __slots__ = ()

    def __new__(cls, name: str) -> Slot:
        return super().__new__(cls, f"<<{name}>>")

    def __format__(self, specification: str) -> str:
        return f"{self[:-2]}:{specification}>>" if specification else str(self)


WINDOW: Final = Slot("window")  # the first rolling window
WINDOW_S: Final = Slot("window_s")
LAST_WINDOW: Final = Slot("last_window")
EACH: Final = Slot("each")  # every one: in a repeated panel, or in a line of a text, which is then repeated
EACH_S: Final = Slot("each_s")

TARGET: Final = Slot("goodput_target")
TARGET_PERCENT: Final = Slot("goodput_target_percent")
HANG_MULTIPLE: Final = Slot("hang_multiple")
HANG_LEAST: Final = Slot("hang_least")
HANG_OTHER: Final = Slot("hang_other")
SILENCE: Final = Slot("gone")
SILENCE_WHOLE_MINUTES: Final = Slot("gone_whole_minutes")  # in seconds, rounded up
RESTARTS: Final = Slot("restarts")
AT_RISK: Final = Slot("at_risk")
DATA_LOADING: Final = Slot("data_loading")
RANK_WAIT: Final = Slot("rank_wait")

DATASOURCE: Final = Slot("datasource")
