"""A collector next to a job, between it and Google's emulator, which may be away; and what must have come through."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from crash.exported import Span
from emulators.google import GoogleEmulator
from emulators.records import Point, SeriesKey
from exporters.google import arrivals
from exporters.google.jobs import Job
from exporters.google.training import Account
from ports import kept_address
from waits import until

from .collector import CONFIGS, OVERLAYS, Collector

JOB = "llama"
CLASSIC = "gcp-sidecar-classic"
PATIENCE_S = 150.0  # the longest that anybody waits between two tries, and then some


class Sidecar:
    """The collector of a configuration for Google Cloud, with the emulator behind it; a context manager.

    `up` says whether the emulator is there from the beginning; else it is once :meth:`rise` is called. `over` are
    configurations that are laid over this one, `more` further variables. `config` may be an absolute path without its
    ``.yaml``; `classic_metrics` says what such a one does.
    """

    def __init__(
        self,
        directory: Path,
        config: str,
        *,
        up: bool = True,
        over: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
        classic_metrics: bool = False,
        **options: Any,
    ) -> None:
        self._directory = directory
        self._classic_spans = config == CLASSIC
        self._classic_metrics = self._classic_spans or "classic-metrics.yaml" in over or classic_metrics
        self.address = kept_address()  # the emulator's
        self.google = GoogleEmulator(port=int(self.address.rpartition(":")[2]))
        self.collector = Collector(
            directory / "collector",
            *(CONFIGS / name for name in (f"{config}.yaml", *over)),
            OVERLAYS / "emulator.yaml",
            environ={"GOOGLE_EMULATOR": self.address, **(more or {})},
            **options,
        )
        self._up = up
        self._exits = ExitStack()

    def __enter__(self) -> Sidecar:
        with ExitStack() as exits:
            if self._up:
                exits.enter_context(self.google)
            exits.callback(self.collector.kill)
            self.collector.start()
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def rise(self) -> None:
        """The emulator is there from now on."""
        self._exits.enter_context(self.google)

    def job(self, environ: Mapping[str, str] | None = None, **options: Any) -> Job:
        """A job that exports through this collector."""
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.collector.grpc}", **(environ or {})}
        return Job(self._directory / "job", variables, exporters=["otlp"], **options)

    # --- what arrived -------------------------------------------------------------------------------------------------

    @property
    def spans(self) -> list[Span]:
        if self._classic_spans:
            return arrivals.cloud_spans(self.google)
        return arrivals.otlp_spans(self.google, JOB)

    @property
    def series(self) -> dict[SeriesKey, list[Point]]:
        return self.google.series if self._classic_metrics else self.google.otlp_series

    def missing(self, account: Account, instance: str = "/0/0@") -> list[str]:
        """What is not there of a job that says this of itself: its last values."""
        prefix = arrivals.CUSTOM if self._classic_metrics else ""
        stored = arrivals.last(self.series, prefix, {("job", JOB)}, instance)
        return list(arrivals.missed(stored, arrivals.expected(account))) if stored else ["all of the metrics"]

    def complete(self, account: Account, *, again: bool = False) -> None:
        """Wait until a job's spans and last values are all there, each span once (unless `again`), each point once."""

        def whole() -> bool:
            return not self.missing(account) and self._whole(again=True)

        until(whole, PATIENCE_S, lambda: self._lack(account), 0.1)
        self.collector.stop(5.0)
        self.collector.start()  # what it would send once more comes now
        until(whole, PATIENCE_S, lambda: self._lack(account), 0.1)
        time.sleep(1.0)
        assert not self.missing(account)
        assert self._whole(again=again), self._lack(account)
        for key, points in self.series.items():
            ends = Counter(point.end for point in points)
            assert max(ends.values()) == 1, f"{key}: {ends.most_common(1)} is there more than once"

    def _whole(self, *, again: bool) -> bool:
        spans = self.spans
        if again:
            spans = list({(span.trace, span.key): span for span in spans}.values())
        try:
            arrivals.check_whole(spans)
        except AssertionError:
            return False
        return bool(spans)

    def _lack(self, account: Account) -> str:
        names = Counter(span.name for span in self.spans)
        values, refused = self.missing(account)[:3], self.google.refusals[:3]
        return f"spans: {names}; values: {values}; refused: {refused}; {self.collector.log[-3000:]}"
