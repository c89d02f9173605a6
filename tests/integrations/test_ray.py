"""Workers of Ray Train: who they are, where their run lies, and which of their reports are saves."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import otel_goodput as goodput
from everyday.stand_ins import ray_train
from otel_goodput.integrations.ray import configure

OFF = {"exporters": "none", "usage_interval": "none", "device_clock": "host"}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.train", ray_train)
    monkeypatch.delenv("OTEL_GOODPUT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    storage = ray_train.Storage(tmp_path / "storage" / "ray-run", ray_train.LocalFileSystem())
    monkeypatch.setattr(ray_train, "context", ray_train.TrainContext(storage))
    yield ray_train
    goodput.shutdown()


def test_a_worker_is_a_process_of_the_job_whose_run_lies_in_rays_storage(ray: ModuleType, tmp_path: Path) -> None:
    recorder = configure(**OFF)
    assert recorder is not None
    held = recorder.config
    assert (held.job_name, held.process_index, held.process_count) == ("ray-run", 1, 2)
    with goodput.step(0):
        pass
    assert [*(tmp_path / "storage/ray-run/goodput").iterdir()] and not (tmp_path / "goodput").exists()


def test_what_is_given_counts(ray: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = configure("mine", process_index=0, process_count=1, directory=tmp_path / "here", **OFF)
    assert recorder is not None
    held = recorder.config
    assert (held.job_name, held.process_count, held.directory) == ("mine", 1, str(tmp_path / "here"))
    monkeypatch.setenv("OTEL_GOODPUT_DIR", str(tmp_path / "there"))
    recorder = configure(**OFF)
    assert recorder is not None and recorder.config.directory == str(tmp_path / "there")


def test_storage_that_is_no_folder_is_reported(
    ray: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class S3FileSystem:
        """As that of pyarrow, by name."""

    remote = ray_train.Storage(Path("bucket/ray-run"), S3FileSystem())
    for storage, warned in ((None, False), (remote, True)):
        monkeypatch.setattr(ray_train, "context", ray_train.TrainContext(storage))
        recorder = configure(**OFF)
        assert recorder is not None and recorder.config.directory == "goodput"
        assert ("set OTEL_GOODPUT_DIR to a folder that all workers share" in caplog.text) is warned


def test_outside_of_a_worker_it_is_configure(
    ray: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_train, "context", None)
    recorder = configure("driver", **OFF)
    assert recorder is not None and (recorder.config.job_name, recorder.config.process_count) == ("driver", 1)
    assert "outside of a worker" in caplog.text


def test_a_report_with_a_checkpoint_is_a_save(ray: ModuleType) -> None:
    Mode = enum.Enum("Mode", ["SYNC", "ASYNC"])
    ray.context = ray_train.TrainContext(None, rank=0, size=1)
    original, before = ray.report, len(ray.reported)
    configure(integrations="ray", **OFF)
    saved, at_risk = list[int](), list[int]()
    with goodput.job():
        for step, _ in goodput.steps(range(4)):
            ray.report({"loss": 1.0})
            if step == 1:
                ray.report({"loss": 1.0}, object(), checkpoint_upload_mode=Mode.ASYNC)
            if step == 2:
                ray.report({"loss": 1.0}, checkpoint=object())
            totals = goodput.totals()
            assert totals is not None
            saved.append(totals.run.categories["checkpoint_save"])
            at_risk.append(totals.at_risk)
    assert saved[0] == 0 < saved[1] < saved[2] == saved[3]
    assert at_risk[2] < at_risk[1], "only what is durable is not at risk"
    assert len(ray.reported) - before == 6
    goodput.shutdown()
    assert ray.report is original
