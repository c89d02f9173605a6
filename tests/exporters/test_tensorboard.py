"""Scalars for TensorBoard, read back by TensorBoard's own loader."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

import fsspec
import pytest
from viewer.browser import PATIENCE_MS, launched
from waits import until

from otel_goodput import Recorder, open_run
from otel_goodput.exporters.registry import resolve
from otel_goodput.exporters.scalars import LARGEST, ScalarWriter
from otel_goodput.exporters.spec import ExporterUnavailable

pytestmark = pytest.mark.servers

BEGIN = 1_700_000_000 * 10**9  # ns


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each tag in the order in which they were written."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    return {
        tag: [(event.step, float(make_ndarray(event.tensor_proto))) for event in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


def job(directory: Path, **options: object) -> Recorder:
    return Recorder("job", directory=directory, exporters="tensorboard", integrations="none", **options)  # type: ignore[arg-type]


def train(recorder: Recorder, first: int, last: int, begin: int = BEGIN) -> None:
    """Steps of 9 s after 1 s of loading, and an evaluation of 5 s."""
    with recorder.job(start_time=begin, end_time=begin + (last - first) * 10 * 10**9 + 5 * 10**9):
        for number in range(first, last):
            at = begin + (number - first) * 10 * 10**9
            with recorder.data_loading(start_time=at, end_time=at + 10**9):
                pass
            with recorder.step(number, start_time=at + 10**9, end_time=at + 10 * 10**9):
                pass
        end = begin + (last - first) * 10 * 10**9
        with recorder.custom("eval", start_time=end, end_time=end + 5 * 10**9):
            pass


def test_the_last_scalars_are_the_report(tmp_path: Path) -> None:
    with job(tmp_path) as recorder:
        train(recorder, 0, 20)
    found = scalars(tmp_path / "job" / "tensorboard")
    totals = open_run(tmp_path).totals()
    last = {tag: values[-1] for tag, values in found.items()}
    assert last["goodput/ratio"] == (19, pytest.approx(totals.run.goodput))
    assert last["seconds/productive"] == (19, pytest.approx(totals.run.productive / 1e9))
    assert last["badput/data_loading"] == (19, pytest.approx(20 / 205))
    assert last["badput/custom/eval"] == (19, pytest.approx(5 / 205))
    assert last["steps/kept"] == (19, 20) and last["step_time/ideal_s"] == (19, pytest.approx(9))
    assert last["step_time/mean_s"] == (19, pytest.approx(9))
    assert last["checkpoint/at_risk_s"] == (19, pytest.approx(180))
    assert "disruptions/crash" not in found and "badput/elastic_slice_down" not in found, "they were always 0"


def test_a_restart_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    with job(tmp_path, run_id="run") as recorder:
        train(recorder, 0, 10)
    with job(tmp_path, run_id="run") as recorder:
        train(recorder, 5, 20, BEGIN + 200 * 10**9)
    found = scalars(tmp_path / "run" / "tensorboard")
    assert found["steps/kept"][-1] == (19, 20)
    assert found["steps/lost"][-1] == (19, 5)
    assert found["disruptions/restart"][-1] == (19, 1)


def test_what_a_killed_job_wrote_is_read(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys, time
        import otel_goodput as goodput
        recorder = goodput.configure("job", directory=sys.argv[1], integrations="none")
        with goodput.job():
            for number in range(10_000):
                with goodput.step(number):
                    time.sleep(0.01)
                if number == 30:
                    goodput.flush()
                    print("flushed", flush=True)
    """)
    environ = {**os.environ, "OTEL_GOODPUT_EXPORTERS": "tensorboard", "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "flushed\n"
        process.send_signal(signal.SIGKILL)
    found = scalars(tmp_path / "job" / "tensorboard")
    step, ratio = found["goodput/ratio"][-1]
    assert step >= 28 and 0.5 < ratio <= 1


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("OTEL_GOODPUT_STRICT", raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OTEL_GOODPUT_TENSORBOARD_DIR", str(tmp_path / "file" / "logs"))
    with caplog.at_level(logging.WARNING), job(tmp_path / "runs") as recorder:
        train(recorder, 0, 5)
        assert recorder.flush() in (True, False)
    assert recorder.totals().kept == 5
    told = [record.getMessage() for record in caplog.records if "tensorboard" in record.getMessage()]
    assert len(told) == 1 and str(tmp_path / "file") in told[0], told


def test_auto_takes_it_where_a_directory_is_named() -> None:
    assert "tensorboard" in resolve(["auto"], {"OTEL_GOODPUT_TENSORBOARD_DIR": "logs"})
    assert "tensorboard" not in resolve(["auto"], {})


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(ExporterUnavailable, match=r"pip install 'otel-goodput\[tensorboard\]'"):
        ScalarWriter(str(tmp_path))
    monkeypatch.undo()
    with pytest.raises(ExporterUnavailable, match="nosuch"):
        ScalarWriter("nosuch://bucket/logs")


def test_at_a_url(tmp_path: Path) -> None:
    """An object cannot be appended to: another file is begun before uploads become dear."""
    memory = fsspec.filesystem("memory")
    writer = ScalarWriter("memory://logs/goodput")
    count = LARGEST // 60
    for number in range(count):
        writer.write("goodput/ratio", number / count, number, 1_700_000_000 + number)
        if number % 5_000 == 4_999:
            writer.flush()
    writer.close()
    names = memory.ls("/logs/goodput", detail=False)
    assert len(names) > 1
    for name in names:
        (tmp_path / Path(name).name).write_bytes(memory.cat_file(name))
    found = scalars(tmp_path)["goodput/ratio"]
    assert [step for step, _ in found] == list(range(count))
    memory.rm("/logs", recursive=True)


@pytest.mark.slow
def test_tensorboard_shows_them_in_a_browser(tmp_path: Path, port: int) -> None:
    with job(tmp_path) as recorder:
        train(recorder, 0, 20)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path), "--host", "127.0.0.1"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*command, "--port", str(port)], env=environ, **quiet) as process:  # type: ignore[call-overload]
        try:
            until(lambda: _tags(port))
            (found,) = _tags(port).values()
            assert {"goodput/ratio", "badput/data_loading", "step_time/ideal_s"} <= found.keys()
            with launched() as browser:
                page = browser.new_page()
                page.set_default_timeout(PATIENCE_MS)
                page.goto(f"http://127.0.0.1:{port}/#timeseries")
                for tag in ("badput/custom/eval", "badput/data_loading"):  # of the cards that are drawn at once
                    page.get_by_text(tag).first.wait_for(state="attached")
        finally:
            process.terminate()


def _tags(port: int) -> dict[str, dict[str, object]]:
    """Tags by run, as TensorBoard's own server tells them; empty while it does not."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/plugin/scalars/tags", timeout=5) as answer:
            found: dict[str, dict[str, object]] = json.load(answer)
    except OSError:
        return {}
    return {run: tags for run, tags in found.items() if tags}
