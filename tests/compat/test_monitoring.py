"""What a monitor uploads: to TensorBoard, and to Google's own series."""

from __future__ import annotations

import logging
import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import warm
from emulators.google import GoogleEmulator
from exporters.test_tensorboard import scalars
from fsspec.implementations.memory import MemoryFileSystem
from waits import until

from compat.calls import JOB, LOGGER, recorder, tell, utc
from otel_goodput.compat import goodput
from otel_goodput.compat.goodput import ElasticGoodputRecorder
from otel_goodput.compat.goodput_utils import BadputType, GCPOptions
from otel_goodput.compat.monitoring import ElasticGoodputMonitor, GoodputMonitor, GoogleSeries

pytestmark = pytest.mark.servers

CALLS = [
    ("job_start", 0, None),
    ("tpu_init_start", 0, None),
    ("tpu_init_end", 10, None),
    ("step_start", 10, 0),
    ("step_start", 20, 1),
    ("custom_badput_event_start", 25, "Eval"),
    ("custom_badput_event_end", 30, "Eval"),
    ("step_start", 35, 2),
    ("job_end", 50, None),
]


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleEmulator]:
    with GoogleEmulator(projects=("the-project",)) as emulator:
        monkeypatch.setenv("OTEL_GOODPUT_GCP_ENDPOINT", emulator.endpoint)
        yield emulator


def series(google: GoogleEmulator, name: str) -> dict[str, float]:
    """The newest value of a series, by the labels that are not the same for all."""
    return {
        " ".join(
            value for key, value in sorted(series_type.labels) if key not in ("accelerator_type", "cluster_name")
        ): last[-1].value
        for series_type, last in google.series.items()
        if series_type.type == f"compute.googleapis.com/workload/{name}"
    }


def trained() -> ElasticGoodputRecorder:
    of = recorder()
    for call in CALLS:
        tell(of, call)
    return of


def test_tensorboard_gets_the_names_that_dashboards_know(tmp_path: Path) -> None:
    trained()
    monitor = GoodputMonitor(
        JOB, LOGGER, str(tmp_path), 30, True, include_badput_breakdown=True, include_step_deviation=True
    )
    monitor.start_goodput_uploader()
    monitor.start_goodput_uploader()
    monitor.start_step_deviation_uploader()
    monitor.stop_goodput_uploader()
    monitor.stop_step_deviation_uploader()
    monitor.stop_goodput_uploader(skip_final_flush=True)
    values = scalars(tmp_path / "goodput")
    assert values["goodput/goodput"] == [(2, pytest.approx(70))]
    assert values["badput/tpu_initialization"] == [(2, pytest.approx(20))]
    assert values["badput/custom_badput_events/eval"] == [(2, pytest.approx(10))]
    assert values["badput/other"] == [(2, 0)]
    assert {f"badput/{kind.name.lower()}" for kind in BadputType if kind.value not in (10, 12, 13, 14)} < values.keys()
    assert values["step_deviation"] == [(0, pytest.approx(2.5)), (1, pytest.approx(2.5))]


def test_cloud_monitoring_gets_googles_series_with_the_overrides(google: GoogleEmulator, tmp_path: Path) -> None:
    trained()
    options = GCPOptions("the-project", "us-east5-b", "7", "TPU-v9", "the-cluster")
    monitor = GoodputMonitor(JOB, LOGGER, str(tmp_path), 30, True, gcp_options=options)
    monitor.stop_goodput_uploader()
    until(lambda: series(google, "goodput_time"))
    assert series(google, "goodput_time") == {"TOTAL": pytest.approx(35)}
    assert series(google, "badput_time")["TPU_INITIALIZATION"] == pytest.approx(10)
    assert series(google, "badput_time")["CUSTOM_BADPUT_EVENTS.EVAL"] == pytest.approx(5)
    assert series(google, "max_productive_steps") == {"": 2}
    assert not google.refusals
    (one,) = [key for key in google.series if key.type.endswith("/goodput_time")]
    assert dict(one.labels) == {
        "goodput_source": "TOTAL", "accelerator_type": "TPU-v9", "cluster_name": "the-cluster",
    }  # fmt: skip
    assert dict(one.resource_labels) == {"location": "us-east5-b", "workload_id": JOB, "replica_id": "7"}


def test_two_monitors_one_with_rolling_windows(google: GoogleEmulator, tmp_path: Path) -> None:
    """As axlearn has it; the windows are added to the account while the job is running."""
    of = recorder()
    of.record_job_start_time()
    of.record_step_start_time(0)
    options = GCPOptions("the-project", "us-east5-b")
    cumulative = GoodputMonitor(JOB, LOGGER, str(tmp_path), 1, True, gcp_options=options)
    rolling = GoodputMonitor(JOB, LOGGER, str(tmp_path), 1, True, gcp_options=options)
    cumulative.start_goodput_uploader()
    rolling.start_rolling_window_goodput_uploader([900, 7200])
    until(lambda: series(google, "interval_goodput") and series(google, "goodput_time"))
    of.record_job_end_time()
    cumulative.stop_goodput_uploader()
    rolling.stop_rolling_window_goodput_uploader()
    intervals = series(google, "interval_goodput")
    assert {name.split()[-1] if "TOTAL" not in name.split()[-1] else name.split()[0] for name in intervals} == {
        "900",
        "7200",
    }
    spans = [span for span, _ in goodput.open_handle(JOB, LOGGER).recorder.totals().rolling]
    assert spans == [3600 * 10**9, 24 * 3600 * 10**9, 900 * 10**9, 7200 * 10**9]


def test_a_monitor_without_a_recorder_reads_the_journal(google: GoogleEmulator, tmp_path: Path, place: Path) -> None:
    """In another process, or on another machine."""
    program = textwrap.dedent("""
        from otel_goodput.compat import goodput
        import time
        of = goodput.GoodputRecorder("job", "goodput_job", True)
        of.record_job_start_time()
        of.record_step_start_time(0)
        time.sleep(1.2)
        of.record_job_end_time()
    """)
    warm.run([sys.executable, "-c", program], check=True, timeout=60, env=dict(os.environ))
    monitor = GoodputMonitor(JOB, LOGGER, str(tmp_path), 30, True, gcp_options=GCPOptions("the-project", "us-east5-b"))
    monitor.stop_goodput_uploader()
    monitor.start_rolling_window_goodput_uploader([600])
    monitor.stop_rolling_window_goodput_uploader()
    assert scalars(tmp_path / "goodput")["goodput/goodput"][-1][1] > 90
    until(lambda: series(google, "interval_goodput"))
    (share,) = series(google, "interval_goodput").values()
    assert share > 90


def test_an_elastic_monitor(google: GoogleEmulator, tmp_path: Path) -> None:
    of = recorder()
    of.record_job_start_time(utc(0))
    of.record_elastic_slice_counts(2, 4, 3, utc(0))
    of.record_step_start_time(0, utc(0))
    of.record_elastic_wait_start_time("elastic_scale_up", utc(50))
    of.record_elastic_wait_end_time("elastic_scale_up", utc(75))
    of.record_job_end_time(utc(100))
    monitor = ElasticGoodputMonitor(
        JOB, LOGGER, str(tmp_path), 30, True, True, include_slice_efficiency=True,
        gcp_options=GCPOptions("the-project", "us-east5-b"),
    )  # fmt: skip
    monitor.stop_goodput_uploader()
    assert scalars(tmp_path / "goodput")["badput/elastic_scale_up"] == [(0, pytest.approx(25))]
    until(lambda: series(google, "stepping_slice_efficiency"))
    assert series(google, "stepping_slice_efficiency") == {"0 CUMULATIVE": pytest.approx(0.5)}
    assert series(google, "available_slice_efficiency") == {"0 CUMULATIVE": pytest.approx(0.75)}


def test_a_stop_is_bounded_where_google_does_not_answer(
    google: GoogleEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_STRICT", raising=False)
    trained()
    monkeypatch.setenv("OTEL_GOODPUT_GCP_ENDPOINT", "http://127.0.0.1:9")
    options = GCPOptions("the-project", "us-east5-b")
    monitor = GoodputMonitor(JOB, LOGGER, str(tmp_path), 1, True, gcp_options=options, final_flush_timeout_seconds=2)
    monitor.start_goodput_uploader()
    time.sleep(1.5)
    began = time.monotonic()
    monitor.stop_goodput_uploader()
    assert time.monotonic() - began < 30, "2 s, and what a busy machine adds"


def test_nothing_forks_and_nothing_runs_when_it_is_disabled(tmp_path: Path) -> None:
    before = threading.active_count()
    monitor = GoodputMonitor(JOB, LOGGER, str(tmp_path), 30)
    monitor.start_goodput_uploader()
    monitor.start_step_deviation_uploader()
    monitor.start_rolling_window_goodput_uploader([60])
    monitor.stop_goodput_uploader()
    monitor.stop_step_deviation_uploader()
    monitor.stop_rolling_window_goodput_uploader()
    assert threading.active_count() == before and not list(tmp_path.glob("goodput*"))


def test_a_tensorboard_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_STRICT", raising=False)
    trained()
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        monitor = GoodputMonitor(JOB, LOGGER, str(tmp_path / "file"), 30, True)
        monitor.stop_goodput_uploader()
        monitor.stop_goodput_uploader()
    messages = [record.getMessage() for record in caplog.records if "TensorBoard" in record.getMessage()]
    assert len(messages) == 1 and str(tmp_path / "file") in messages[0]


class CountingFileSystem(MemoryFileSystem):
    """An object storage that counts what is uploaded."""

    protocol = "counting"
    uploads = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.removeprefix("counting:/"))

    def pipe_file(self, path: str, value: bytes, *more: object, **kwargs: object) -> None:
        type(self).uploads += 1
        super().pipe_file(path, value, *more, **kwargs)


def test_tensorboard_at_a_url_gets_each_upload_at_once(tmp_path: Path) -> None:
    fsspec.register_implementation("counting", CountingFileSystem, clobber=True)
    trained()
    monitor = GoodputMonitor(
        JOB, LOGGER, "counting://logs", 30, True, include_badput_breakdown=True, include_step_deviation=True
    )
    monitor.stop_goodput_uploader()
    monitor.start_step_deviation_uploader()
    monitor.stop_step_deviation_uploader()
    assert CountingFileSystem.uploads == 2
    storage = fsspec.filesystem("counting")
    (name,) = storage.ls("/logs/goodput", detail=False)
    (tmp_path / Path(name).name).write_bytes(storage.cat_file(name))
    assert {"goodput/goodput", "badput/tpu_initialization", "step_deviation"} <= scalars(tmp_path).keys()
    storage.rm("/logs", recursive=True)


def test_a_stop_while_tensorboards_url_fails_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not written is written once that is possible."""
    monkeypatch.delenv("OTEL_GOODPUT_STRICT", raising=False)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/away", b"a file where the folder should be")
    trained()
    monitor = GoodputMonitor(JOB, LOGGER, "memory://away", 30, True)
    monitor.stop_goodput_uploader()
    monitor.stop_goodput_uploader()
    memory.rm("/away")
    monitor.stop_goodput_uploader()
    (name,) = memory.ls("/away/goodput", detail=False)
    (tmp_path / Path(name).name).write_bytes(memory.cat_file(name))
    assert scalars(tmp_path) == {"goodput/goodput": [(2, pytest.approx(70))] * 3}
    memory.rm("/away", recursive=True)


def test_windows_that_are_uploaded_meanwhile_cost_no_last_point(
    google: GoogleEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn of the windows comes between the last upload of goodput and the sending of what waited for its turn."""
    close = GoogleSeries.close

    def after_windows(one: GoogleSeries) -> None:
        monitor._upload_windows()
        close(one)

    monkeypatch.setattr(GoogleSeries, "close", after_windows)
    of = recorder()
    of.record_job_start_time(utc(0))
    of.record_step_start_time(0, utc(0))
    monitor = GoodputMonitor(JOB, LOGGER, "", 1, True, gcp_options=GCPOptions("the-project", "us-east5-b"))
    monitor.start_goodput_uploader()
    monitor.start_rolling_window_goodput_uploader([3600])
    until(lambda: series(google, "goodput_time"))
    of.record_step_start_time(7, utc(50))
    of.record_job_end_time(utc(100))
    monitor.stop_goodput_uploader()
    monitor.stop_rolling_window_goodput_uploader()
    assert series(google, "goodput_time") == {"TOTAL": pytest.approx(100)}


def test_a_window_of_a_month_and_a_last_upload_right_behind_another(google: GoogleEmulator, tmp_path: Path) -> None:
    """Its length is written out; and what waits for its turn at Google is sent at the stop."""
    of = recorder()
    of.record_job_start_time(utc(0))
    of.record_step_start_time(0, utc(0))
    monitor = GoodputMonitor(JOB, LOGGER, "", 1, True, gcp_options=GCPOptions("the-project", "us-east5-b"))
    monitor.start_goodput_uploader()
    monitor.start_rolling_window_goodput_uploader([2_592_000])
    until(lambda: series(google, "goodput_time"))
    of.record_step_start_time(7, utc(50))
    of.record_job_end_time(utc(100))
    monitor.stop_goodput_uploader()
    monitor.stop_rolling_window_goodput_uploader()
    assert series(google, "goodput_time") == {"TOTAL": pytest.approx(100)}
    assert "TOTAL 2592000" in {
        " ".join(sorted(name.split(), reverse=True)) for name in series(google, "interval_goodput")
    }
