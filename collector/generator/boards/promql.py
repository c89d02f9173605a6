"""PromQL over our metrics, as Prometheus has them and as Cloud Monitoring does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from textwrap import indent
from typing import Final, NamedTuple

from boards.naming import (
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
from otel_goodput.semconv import RUN_ID, Metric

# Exports are a minute apart, so a range holds some points in it even when one is late.
RANGE: Final = "5m"


def braces(*matchers: str) -> str:
    return "{" + ", ".join(matchers) + "}" if matchers else ""


class Except(str):
    """A value that an attribute must not have."""


def equal(wanted: Mapping[str, str], key: Callable[[str], str] = label) -> list[str]:
    """Matchers of attributes; values are quoted as Go quotes strings."""
    signs = {name: "!=" if isinstance(value, Except) else "=" for name, value in wanted.items()}
    return [f"{key(name)}{signs[name]}{quoted(value)}" for name, value in wanted.items()]


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
        key: an attribute's key as it stands in matchers and groups.
    """

    run: tuple[str, str]
    writer: tuple[str, ...]
    vector: Callable[[Metric, Mapping[str, str], str, str], str]
    key: Callable[[str], str] = label

    def select(self, metric: Metric, only: Mapping[str, str], of: str = "{}", part: str = "") -> str:
        """The series of `metric` with the values `only` of attributes, each with the labels of `run`.

        In `of` the braces stand for the selector: ``rate({}[5m])``. `part` is the suffix of a part of a distribution,
        such as ``_count``.
        """
        return self.vector(metric, only, of, part)

    def of_run(self, function: str, vector: str, more: Iterable[str] = ()) -> str:
        """What a vector comes to for each run, and for each value of the attributes `more`; on lines of its own."""
        return grouped(function, [*self.run, *map(self.key, more)], f"\n{indent(vector, '  ')}\n")


def _with_run(vector: str) -> str:
    """The run's id is taken out of the instance: as a resource attribute it stands in ``target_info`` only."""
    return f'label_replace({vector}, "{label(RUN_ID)}", "$1", "{PROMETHEUS_INSTANCE}", "{RUN_OF_INSTANCE}")'


def _in_prometheus(metric: Metric, only: Mapping[str, str], of: str, part: str) -> str:
    return _with_run(of.replace("{}", f"{prometheus_metric(metric)}{part}{braces(*equal(only))}"))


def _in_cloud(metric: Metric, only: Mapping[str, str], of: str, part: str) -> str:
    name = quoted(f"{cloud_metric(metric)}{part}")
    return of.replace("{}", braces(name, f'monitored_resource="{CLOUD_RESOURCE}"', *equal(only)))


def _in_target(metric: Metric, only: Mapping[str, str], of: str, part: str) -> str:
    """Names with dots are quoted, as PromQL's syntax for UTF-8 has it."""
    return _with_run(of.replace("{}", braces(quoted(f"{metric.name}{part}"), *equal(only, quoted))))


_RUNS: Final = (PROMETHEUS_JOB, label(RUN_ID))
_PROCESSES: Final = (PROMETHEUS_JOB, PROMETHEUS_INSTANCE)
PROMETHEUS: Final = Dialect(_RUNS, _PROCESSES, _in_prometheus)
CLOUD: Final = Dialect((CLOUD_JOB, CLOUD_RUN), (CLOUD_JOB, CLOUD_RUN, *CLOUD_PLACE), _in_cloud)
# Of Cloud Monitoring too: what came by OTLP.
TARGET: Final = Dialect(_RUNS, _PROCESSES, _in_target, quoted)
