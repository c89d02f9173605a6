"""PromQL over our metrics, as Prometheus has them and as Cloud Monitoring does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from textwrap import indent
from typing import Final, NamedTuple

from otel_goodput.semconv import RUN_ID, Metric
from views.naming import (
    CLOUD_JOB,
    CLOUD_PLACE,
    CLOUD_RESOURCE,
    CLOUD_RUN,
    PROMETHEUS_INSTANCE,
    PROMETHEUS_JOB,
    RUN_OF_INSTANCE,
    cloud_metric,
    label,
    prometheus_metric,
)

# Exports are a minute apart, so a range holds some points in it even when one is late.
RANGE: Final = "5m"


def braces(*matchers: str) -> str:
    return "{" + ", ".join(matchers) + "}" if matchers else ""


def equal(wanted: Mapping[str, str]) -> list[str]:
    """Matchers of attributes; values are quoted as Go quotes strings."""
    return [f"{label(key)}={quoted(value)}" for key, value in wanted.items()]


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def grouped(function: str, labels: Iterable[str], vector: str) -> str:
    names = ", ".join(labels)
    return f"{function} by ({names}) ({vector})" if names else f"{function}({vector})"


class Dialect(NamedTuple):
    """How series are selected in one place.

    Attributes:
        run: labels that tell the runs apart, the job's first.
        writer: labels that tell apart who writes of a run: its attempts, or the places where they are.
        vector: see :meth:`select`.
    """

    run: tuple[str, str]
    writer: tuple[str, ...]
    vector: Callable[[Metric, Mapping[str, str], str], str]

    def select(self, metric: Metric, only: Mapping[str, str], of: str = "{}") -> str:
        """The series of `metric` with the values `only` of attributes, each with the labels of `run`.

        In `of` the braces stand for the selector: ``rate({}[5m])``.
        """
        return self.vector(metric, only, of)

    def of_run(self, function: str, vector: str, more: Iterable[str] = ()) -> str:
        """What a vector comes to for each run, and for each value of the attributes `more`; on lines of its own."""
        return grouped(function, [*self.run, *map(label, more)], f"\n{indent(vector, '  ')}\n")


def _in_prometheus(metric: Metric, only: Mapping[str, str], of: str) -> str:
    """The run's id is taken out of the instance: as a resource attribute it stands in ``target_info`` only."""
    vector = of.replace("{}", f"{prometheus_metric(metric)}{braces(*equal(only))}")
    return f'label_replace({vector}, "{label(RUN_ID)}", "$1", "{PROMETHEUS_INSTANCE}", "{RUN_OF_INSTANCE}")'


def _in_cloud(metric: Metric, only: Mapping[str, str], of: str) -> str:
    return of.replace("{}", cloud_selector(metric, only))


def cloud_selector(metric: Metric, only: Mapping[str, str], part: str = "") -> str:
    """`part` is the suffix of a part of a distribution, such as ``_count``."""
    name = quoted(f"{cloud_metric(metric)}{part}")
    return braces(name, f'monitored_resource="{CLOUD_RESOURCE}"', *equal(only))


PROMETHEUS: Final = Dialect((PROMETHEUS_JOB, label(RUN_ID)), (PROMETHEUS_JOB, PROMETHEUS_INSTANCE), _in_prometheus)
CLOUD: Final = Dialect((CLOUD_JOB, CLOUD_RUN), (CLOUD_JOB, CLOUD_RUN, *CLOUD_PLACE), _in_cloud)
