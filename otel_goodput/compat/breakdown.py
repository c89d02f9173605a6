"""An account in the words of ml-goodput-measurement."""

from __future__ import annotations

from collections.abc import Mapping

from otel_goodput._accounting.totals import Partition
from otel_goodput._metrics.workload_series import BADPUT_SOURCES
from otel_goodput._text.durations import NS
from otel_goodput.compat.ml_goodput_measurement.goodput_utils import Badput, BadputType
from otel_goodput.semconv import Category

PERCENT = 100.0
_ELASTIC = (BadputType.ELASTIC_SLICE_DOWN, BadputType.ELASTIC_SCALE_UP, BadputType.ELASTIC_REINITIALIZATION)


def badput_seconds(partition: Partition, overlapped: int = 0, *, elastic: bool = False) -> Badput:
    """Seconds by type; custom events by name. With the productive time, all but ASYNC add up to the elapsed time.

    Args:
        partition: the account; stalled time is that of its steps, as in the original.
        overlapped: data loading beside steps, ns.
        elastic: whether to have the elastic types also if they are 0.
    """
    found: dict[BadputType, float] = {
        kind: 0.0 for kind in BadputType if kind is not BadputType.CUSTOM_BADPUT_EVENTS and kind not in _ELASTIC
    }
    if elastic:
        found |= dict.fromkeys(_ELASTIC, 0.0)
    found[BadputType.DATA_LOADING_ASYNC] = overlapped / NS
    for category, duration in partition.whole_steps.items():
        if category != Category.PRODUCTIVE and duration:
            kind = BadputType[BADPUT_SOURCES[category]]
            found[kind] = found.get(kind, 0.0) + duration / NS
    custom = {name: duration / NS for name, duration in partition.custom.items()}
    return {**found, BadputType.CUSTOM_BADPUT_EVENTS: custom}


def percent(seconds: Mapping[BadputType, float | dict[str, float]], elapsed: int) -> Badput:
    """The same as shares of `elapsed` (ns), in percent."""
    share = PERCENT * NS / elapsed
    return {
        kind: {name: part * share for name, part in value.items()} if isinstance(value, dict) else value * share
        for kind, value in seconds.items()
    }


def goodput_percent(partition: Partition) -> float:
    """The productive share in percent; by the host's clock where no other is known."""
    return PERCENT * partition.whole_steps[Category.PRODUCTIVE] / partition.elapsed
