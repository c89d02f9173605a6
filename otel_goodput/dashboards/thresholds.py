"""What the alerts go by. Each is an option of ``otel-goodput dashboards``."""

from __future__ import annotations

from dataclasses import dataclass, field

from otel_goodput.envvars import OTEL_GOODPUT_WINDOWS
from otel_goodput.text.durations import parse_duration, window_name

SHARE = "share"  # between 0 and 1


def windows(text: str = OTEL_GOODPUT_WINDOWS.default) -> tuple[str, ...]:
    """Rolling windows as OTEL_GOODPUT_WINDOWS has them, by the names that they have in metrics.

    Raises:
        ValueError: one of them is no duration.
    """
    return tuple(window_name(parse_duration(part)) for part in text.split(","))


@dataclass(frozen=True)
class Thresholds:
    """Times are in seconds, shares between 0 and 1."""

    goodput_target: float = field(
        default=0.8, metadata={"kind": SHARE, "help": "alert if goodput of the first rolling window is below this"}
    )
    hang_multiple: float = field(
        default=10.0, metadata={"help": "in a step, a job hangs after this many ideal step times ..."}
    )
    hang_least: float = field(default=300.0, metadata={"help": "... and at least this many seconds"})
    hang_other: float = field(
        default=1800.0,
        metadata={"help": "the same for loads, saves, evaluations, between steps, and before step times are known"},
    )
    gone: float = field(default=300.0, metadata={"help": "seconds of silence after which a running run counts as gone"})
    restarts: float = field(default=3.0, metadata={"help": "disruptions within an hour that count as a restart loop"})
    at_risk: float = field(default=3600.0, metadata={"help": "seconds of progress that a crash may lose"})
    data_loading: float = field(
        default=0.1, metadata={"kind": SHARE, "help": "share of time that may be spent waiting for data"}
    )


def window_seconds(window: str) -> int:
    """Seconds of a rolling window such as ``1h``."""
    return parse_duration(window) // 10**9
