"""A dashboard before it is Cloud Monitoring's or Grafana's: sections of panels of queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from boards.slots import Slot
from otel_goodput._metrics.workload_series import WorkloadSeries
from otel_goodput.semconv import Metric

COLUMNS: Final = 12


class View(Enum):
    """How a panel shows its queries."""

    FIGURE = "figure"
    LINES = "lines"
    STACK = "stack"
    TABLE = "table"
    HEATMAP = "heatmap"


class Read(Enum):
    """What is taken of a metric."""

    LATEST = "latest"  # gauges and what counts up and down
    EVENTS = "events"  # a count of what happens to a run, over all its attempts
    RATE = "rate"  # a counter of this process, per second
    PER_MINUTE = "per minute"  # how many values a histogram was given
    P50 = "0.5"
    P99 = "0.99"
    BUCKETS = "buckets"
    AGE = "age"  # seconds since the moment that it tells


class Across(Enum):
    """What several series, or several runs, come to together: their sum, their mean, or the worst of them."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"


class Unit(Enum):
    """Of the figures of a panel."""

    SHARE = "share"  # 1 = all
    PERCENT = "percent"  # 100 = all
    SECONDS = "seconds"
    COUNT = "count"
    FACTOR = "factor"
    BYTES = "bytes"
    WATTS = "watts"


@dataclass(frozen=True)
class Query:
    """One metric, cut down and summed up.

    Attributes:
        text: says in the legend what the labels of `by` do not.
        only, but: attributes with the value that is wanted, or unwanted.
        by: attributes that stay apart.
        share_of: what the figures are divided by.
    """

    source: Metric | WorkloadSeries
    text: str = ""
    only: Mapping[str, str] = field(default_factory=dict)
    but: Mapping[str, str] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    read: Read = Read.LATEST
    across: Across = Across.SUM
    share_of: Query | None = None


class Bound(NamedTuple):
    """From which figure on a panel turns red."""

    value: float | Slot
    below: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel of a dashboard.

    Attributes:
        brief: for whoever does not know the figure.
        width: in columns of :data:`COLUMNS`.
        zeros: whether a series that is 0 all the time says anything.
        words: what values mean.
        repeated: once for each rolling window.
    """

    title: str
    brief: str
    view: View
    unit: Unit
    queries: Sequence[Query]
    width: int = 4
    bound: Bound | None = None
    zeros: bool = True
    words: Mapping[int, str] = field(default_factory=dict)
    repeated: bool = False

    @property
    def height(self) -> int:
        return 2 if self.view is View.FIGURE else 4


class Section(NamedTuple):
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Board:
    title: str
    brief: str
    sections: Sequence[Section]
