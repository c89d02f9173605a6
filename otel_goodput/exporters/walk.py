"""Walks over what a metric reader collects: resources, their scopes, and metrics."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource

from otel_goodput.semconv import SCOPE_NAME


def every_metric(data: MetricsData) -> Iterator[tuple[ResourceMetrics, ScopeMetrics, Metric]]:
    """Yield each metric after its resource and scope."""
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield resource, scope, metric


def own_metrics(data: MetricsData) -> Iterator[Metric]:
    """Yield the metrics of this package."""
    return (metric for _, scope, metric in every_metric(data) if scope.scope.name == SCOPE_NAME)


def every_point(data: MetricsData) -> Iterator[Any]:
    """Yield the points of all metrics."""
    for _, _, metric in every_metric(data):
        yield from metric.data.data_points


def with_points(metric: Metric, points: list[Any]) -> Metric:
    """Return `metric` with other points."""
    data: Any = metric.data
    return replace(metric, data=replace(data, data_points=points))


def converted(
    data: MetricsData,
    metric: Callable[[ScopeMetrics, Metric], Metric | None],
    resource: Callable[[Resource], Resource] = lambda resource: resource,
) -> MetricsData:
    """Return `data` with each metric (None: left out) and each resource converted; what does not change is the same."""

    def scope_of(scope: ScopeMetrics) -> ScopeMetrics:
        metrics = [new for each in scope.metrics if (new := metric(scope, each)) is not None]
        return scope if _same(metrics, scope.metrics) else replace(scope, metrics=metrics)

    def group_of(group: ResourceMetrics) -> ResourceMetrics:
        about, scopes = resource(group.resource), [scope_of(scope) for scope in group.scope_metrics]
        same = about is group.resource and _same(scopes, group.scope_metrics)
        return group if same else replace(group, resource=about, scope_metrics=scopes)

    groups = [group_of(group) for group in data.resource_metrics]
    return data if _same(groups, data.resource_metrics) else MetricsData(groups)


def _same(new: Sequence[object], old: Sequence[object]) -> bool:
    return len(new) == len(old) and all(map(operator.is_, new, old))
