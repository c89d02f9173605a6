"""Pacing, whatever happens: points at any pace, answers lost or late, other writers; the last value always arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import grpc
from emulators.google import GoogleEmulator
from google.cloud.monitoring_v3 import MetricServiceClient
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport
from google.cloud.monitoring_v3.types import CreateTimeSeriesRequest, TimeSeries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput.exporters.google.connection import MONITORING, Connection
from otel_goodput.exporters.google.delivery import Delivery
from otel_goodput.exporters.google.monitoring import Series, SeriesWriter

NS = 10**9
PROJECT = "projects/test-project"


class Tick(NamedTuple):
    """Something exported: so many tenths of a second after the one before, and what goes wrong."""

    tenths: int
    fault: str


FAULTS: dict[str, Callable[[GoogleEmulator], None]] = {
    "": lambda google: None,
    "unavailable": lambda google: google.fail("*", "UNAVAILABLE", 1, retry_after_s=0.0),
    "lost": lambda google: google.fail("*", "UNAVAILABLE", 1, retry_after_s=0.0, after_write=True),
    "down": lambda google: google.fail("*", "UNAVAILABLE", None, retry_after_s=60.0),
    "lost, then down": lambda google: google.fail("*", "UNAVAILABLE", None, retry_after_s=60.0, after_write=True),
}  # fmt: skip
TICKS = st.lists(st.builds(Tick, st.integers(0, 120), st.sampled_from(sorted(FAULTS))), min_size=1, max_size=12)


def requests(client: MetricServiceClient) -> Callable[[Sequence[Series]], Callable[[float], object]]:
    def request(series: Sequence[Series]) -> Callable[[float], object]:
        def send(seconds: float) -> None:
            message = CreateTimeSeriesRequest(name=PROJECT)
            for one in series:
                data = TimeSeries.pb(TimeSeries())
                data.metric.type = f"custom.googleapis.com/{one.name}"
                data.resource.type = "global"
                point = data.points.add()
                point.value.double_value = one.data
                point.interval.end_time.FromNanoseconds(one.end)
                if one.start is not None:
                    data.metric_kind = 3
                    point.interval.start_time.FromNanoseconds(one.start)
                CreateTimeSeriesRequest.pb(message).time_series.append(data)
            client.create_time_series(request=message, timeout=seconds, retry=None)

        return send

    return request


def test_what_is_no_longer_refused_is_not_reported_later() -> None:
    """A ratio that was held, and is not known any more when the process ends."""
    with GoogleEmulator() as google, grpc.insecure_channel(google.endpoint.removeprefix("http://")) as channel:
        client = MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))
        environ = {"OTEL_GOODPUT_GCP_ENDPOINT": google.endpoint, "OTEL_GOODPUT_GCP_PROJECT": "test-project"}
        delivery = Delivery(MONITORING, "points", Connection(environ), ShutdownSignal(), 5.0)
        writer = SeriesWriter(delivery, requests(client))
        start = time.time_ns() - 30 * NS

        def write(second: int, *names: str) -> None:
            writer.write([Series(name, name, None, start + second * NS, float(second)) for name in names], 5.0)

        write(0, "time", "ratio", "rare")
        write(2, "time", "ratio")
        write(6, "rare")
        write(8, "time")
        assert writer.finish(5.0)
        stored = {key.type.rpartition("/")[2]: [one.value for one in points] for key, points in google.series.items()}
        assert stored == {"time": [0.0, 8.0], "ratio": [0.0], "rare": [0.0, 6.0]}


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(ticks=TICKS, series=st.integers(1, 3), totals=st.booleans(), healed=st.booleans())
def test_the_last_value_of_every_series_arrives(ticks: list[Tick], series: int, totals: bool, healed: bool) -> None:
    with GoogleEmulator() as google, grpc.insecure_channel(google.endpoint.removeprefix("http://")) as channel:
        client = MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))
        environ = {"OTEL_GOODPUT_GCP_ENDPOINT": google.endpoint, "OTEL_GOODPUT_GCP_PROJECT": "test-project"}
        stopping = ShutdownSignal()
        writer = SeriesWriter(Delivery(MONITORING, "points", Connection(environ), stopping, 5.0), requests(client))
        length = sum(tick.tenths for tick in ticks) * NS // 10
        start = time.time_ns() - length - 30 * NS
        now = start + NS
        for number, tick in enumerate(ticks):
            now += tick.tenths * NS // 10
            FAULTS[tick.fault](google)
            points = [Series(at, f"s{at}", start if totals else None, now, float(number)) for at in range(series)]
            writer.write(points, 5.0)
            if "down" in tick.fault or healed:
                google.heal()
        google.heal()
        stopping.begin(5.0)
        assert writer.finish(5.0)
        stored = {key.type.rpartition("/")[2]: points for key, points in google.series.items()}
        assert set(stored) == {f"s{at}" for at in range(series)}
        for points in stored.values():
            values = [point.value for point in points]
            assert values[-1] == len(ticks) - 1
            assert values == sorted(values)
            assert all(after.end - before.end >= 5 * NS for before, after in pairwise(points))
            assert points[-1].end <= now + 11 * NS
        if not any("lost" in tick.fault for tick in ticks):
            assert not google.refusals
        assert writer.refused == 0
