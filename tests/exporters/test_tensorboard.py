"""Scalars for TensorBoard, read back by TensorBoard's own loader.

Longer than other files: all of them read what was written with the same few functions.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import warm
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from viewer.browser import PATIENCE_MS, launched
from waits import until

from otel_goodput import Recorder, open_run, semconv
from otel_goodput.exporters.registry import resolve
from otel_goodput.exporters.tensorboard import MEAN_STEP_TIME, TAGS, ScalarWriter, TensorBoardExporter

pytestmark = pytest.mark.servers

LACKS = "the last metrics of this attempt have not reached tensorboard"
BEGIN = 1_700_000_000 * 10**9  # ns


def scalars(folder: Path | str) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each tag in the order in which they were written."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return {
        tag: [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def shown(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each tag as TensorBoard shows them: without what a later session supersedes."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
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


def ran(program: str, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return warm.run(command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False)


def test_the_last_scalars_are_the_report(tmp_path: Path) -> None:
    with job(tmp_path) as recorder:
        train(recorder, 0, 20)
    series = scalars(tmp_path / "job" / "tensorboard")
    totals = open_run(tmp_path).totals()
    last = {tag: values[-1] for tag, values in series.items()}
    assert last["goodput/ratio"] == (19, pytest.approx(totals.run.goodput))
    assert last["seconds/productive"] == (19, pytest.approx(totals.run.productive / 1e9))
    assert last["badput/data_loading"] == (19, pytest.approx(20 / 205))
    assert last["badput/custom/eval"] == (19, pytest.approx(5 / 205))
    assert last["steps/kept"] == (19, 20) and last["step_time/ideal_s"] == (19, pytest.approx(9))
    assert last["step_time/mean_s"] == (19, pytest.approx(9))
    assert last["checkpoint/at_risk_s"] == (19, pytest.approx(180))
    assert "disruptions/crash" not in series and "badput/elastic_slice_down" not in series, "they were always 0"


def test_a_restart_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    with job(tmp_path, run_id="run") as recorder:
        train(recorder, 0, 10)
    with job(tmp_path, run_id="run") as recorder:
        train(recorder, 5, 20, BEGIN + 200 * 10**9)
    series = scalars(tmp_path / "run" / "tensorboard")
    assert series["steps/kept"][-1] == (19, 20)
    assert series["steps/lost"][-1] == (19, 5)
    assert series["disruptions/restart"][-1] == (19, 1)


@pytest.mark.parametrize("company", ["alone", "a writer of the user's"])
def test_a_run_that_goes_back_never_goes_back_on_the_axis(company: str, tmp_path: Path) -> None:
    """After a resume and after a rollback. TensorBoard drops what was written of the steps that are done again."""
    folder = tmp_path / "job" / "tensorboard"
    with job(tmp_path, run_id="job") as recorder:
        train(recorder, 0, 80)
        recorder.flush()
    users = f"events.out.tfevents.{int(time.time()):010d}.host.1.0"
    if company != "alone":
        writer = ScalarWriter(str(folder))
        (own,) = (path for path in folder.iterdir() if path.stat().st_size < 100)
        writer.write("user/loss", 0.5, 70, time.time())
        writer.close()
        own.rename(folder / users)
    with job(tmp_path, run_id="job") as recorder, recorder.job():
        recorder.flush()  # before anything is known to be done again
        with recorder.checkpoint_restore(20):
            pass
        for number in range(21, 50):
            with recorder.step(number), recorder.custom("eval"):  # a body without work is a skipped batch (R4)
                pass
            if number % 10 == 0:
                recorder.flush()
        with recorder.checkpoint_restore(30):
            pass
        for number in range(31, 41):
            with recorder.step(number), recorder.custom("eval"):
                pass
        recorder.flush()
    series = shown(folder)
    if company == "alone":
        for tag, values in series.items():
            steps = [step for step, _ in values]
            assert steps == sorted(steps), tag
        assert series["steps/kept"][-1] == (40, 41.0)
    else:
        assert series["user/loss"] == [(70, 0.5)], "what is the user's stays"


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
    with warm.Process(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "flushed\n"
        process.send_signal(signal.SIGKILL)
    series = scalars(tmp_path / "job" / "tensorboard")
    step, ratio = series["goodput/ratio"][-1]
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
    why, last = (record.getMessage() for record in caplog.records if "tensorboard" in record.getMessage())
    assert str(tmp_path / "file") in why and last.startswith(LACKS)


def test_auto_takes_it_where_a_directory_is_named() -> None:
    assert "tensorboard" in resolve(["auto"], {"OTEL_GOODPUT_TENSORBOARD_DIR": "logs"})
    assert "tensorboard" not in resolve(["auto"], {})


def test_who_may_read_it(tmp_path: Path) -> None:
    """Where the user wants them, whom the umask lets; in the run's folder only the owner."""
    program = """
        import os, sys
        from otel_goodput import Recorder
        os.umask(int(sys.argv[2], 8))
        with Recorder("job", run_id="r", directory=sys.argv[1], exporters="tensorboard", integrations="none") as run:
            with run.job(), run.step(0):
                pass
    """

    def modes(folder: Path) -> set[int]:
        return {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}

    for umask, expected in (("022", {0o755, 0o644}), ("027", {0o750, 0o640}), ("077", {0o700, 0o600})):
        place = tmp_path / umask / "logs" / "deeper"
        done = ran(program, tmp_path / "runs", umask, OTEL_GOODPUT_TENSORBOARD_DIR=str(place))
        assert done.returncode == 0, done.stderr
        assert modes(place) == expected and modes(place.parent) >= {max(expected)}
    done = ran(program, tmp_path / "runs", "000")
    assert done.returncode == 0 and modes(tmp_path / "runs" / "r" / "tensorboard") == {0o700, 0o600}, done.stderr


def test_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that the user names is followed; one in the run's folder, where ours should be, is not."""
    monkeypatch.delenv("OTEL_GOODPUT_STRICT", raising=False)
    (tmp_path / "far").mkdir()
    (tmp_path / "named").symlink_to("far")
    monkeypatch.setenv("OTEL_GOODPUT_TENSORBOARD_DIR", str(tmp_path / "named"))
    with job(tmp_path / "runs") as recorder:
        train(recorder, 0, 5)
    assert "goodput/ratio" in scalars(tmp_path / "far")
    with pytest.raises(OSError, match="link"):
        ScalarWriter(str(tmp_path / "named"))


def test_odd_names_of_phases(tmp_path: Path) -> None:
    with job(tmp_path) as recorder, recorder.job():
        for name in ("a/b", "<b>", "mit Umlaut ä", "surrogate \udc80"):
            with recorder.custom(name):
                time.sleep(0.001)
    series = scalars(tmp_path / "job" / "tensorboard")
    names = ("a/b", "<b>", "mit Umlaut ä", "surrogate ?")
    assert {f"seconds/custom/{name}" for name in names} <= series.keys()


def test_windows_and_stragglers_and_no_figures_of_others(tmp_path: Path) -> None:
    provider = MeterProvider([PeriodicExportingMetricReader(TensorBoardExporter(str(tmp_path)), math.inf)])
    meter = provider.get_meter(semconv.SCOPE_NAME)
    meter.create_gauge(semconv.STEP_MAX.name).set(7)
    meter.create_gauge(semconv.STRAGGLER.name).set(1.25)
    late = {semconv.GOODPUT_RANK: "5", semconv.GOODPUT_CATEGORY: semconv.Category.DATA_LOADING}
    meter.create_counter(semconv.RANK_WAIT.name).add(3, late)
    windows = meter.create_gauge(semconv.RATIO.name)
    windows.set(0.5, {semconv.GOODPUT_WINDOW: semconv.WINDOW_RUN})
    windows.set(0.75, {semconv.GOODPUT_WINDOW: "1h"})
    provider.get_meter("another").create_gauge(semconv.AT_RISK.name).set(3)
    provider.force_flush()
    provider.shutdown()
    assert scalars(tmp_path) == {
        "processes/straggler_ratio": [(7, 1.25)],
        "rank_waits/5/data_loading_s": [(7, 3)],
        "goodput/ratio": [(7, 0.5)],
        "goodput_1h/ratio": [(7, 0.75)],
    }


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_left_out(tmp_path: Path, value: float) -> None:
    """The SDK drops such values of its own instruments, but not every exporter is fed by it."""
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter(semconv.SCOPE_NAME)
    meter.create_gauge(semconv.STRAGGLER.name).set(1)
    meter.create_gauge(semconv.STEP_IDEAL.name).set(2)
    data = reader.get_metrics_data()
    assert data is not None
    one = data.resource_metrics[0].scope_metrics[0].metrics[0]
    point = one.data.data_points[0]
    one.data.data_points[:] = [replace(point, value=value)]
    exporter = TensorBoardExporter(str(tmp_path))
    exporter.export(data)
    exporter.shutdown()
    assert scalars(tmp_path) == {"step_time/ideal_s": [(0, 2)]}


JOB = """
    import os, sys, threading
    import otel_goodput as goodput
    goodput.configure("job", directory=sys.argv[1], integrations="none")
    with goodput.job():
        for number in range(4):
            with goodput.step(number):
                pass
            goodput.flush()
            if number == 1 and hasattr(os, "fork"):
                child = os.fork()
                if child == 0:
                    sys.exit()  # with all that is done at the exit of a process
                os.waitpid(child, 0)
    print("tensorflow" in sys.modules, "tensorboard" in sys.modules)
"""


@pytest.mark.parametrize("where", ["path", "URL"])
def test_a_job_with_forked_children_and_tensorflow(tmp_path: Path, where: str) -> None:
    """Children leave the parent's file alone; TensorFlow, for which TensorBoard looks, stays out of the job."""
    (tmp_path / "packages" / "tensorflow").mkdir(parents=True)
    (tmp_path / "packages" / "tensorflow" / "__init__.py").write_text("raise SystemExit('TensorFlow was imported')")
    logs = tmp_path / "logs"
    done = ran(
        JOB,
        tmp_path / "runs",
        OTEL_GOODPUT_EXPORTERS="tensorboard",
        OTEL_GOODPUT_TENSORBOARD_DIR=str(logs) if where == "path" else logs.as_uri(),
        PYTHONPATH=os.pathsep.join([str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")]),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False True\n", "")
    assert len(list(logs.iterdir())) == 1
    assert [step for step, _ in scalars(logs)["steps/kept"]] == [0, 1, 2, 3, 3]


def test_a_job_whose_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    where = str(tmp_path / "file" / "logs")
    named = {"OTEL_GOODPUT_EXPORTERS": "tensorboard", "OTEL_GOODPUT_TENSORBOARD_DIR": where}
    done = ran(JOB, tmp_path / "runs", **named, OTEL_GOODPUT_STRICT="")
    assert done.returncode == 0 and open_run(tmp_path / "runs").totals().kept == 4
    why, last = done.stderr.splitlines()
    assert "exporter tensorboard cannot write its scalars" in why and str(tmp_path / "file") in why
    assert last.startswith(LACKS)


def test_a_url_that_hangs_holds_up_neither_steps_nor_the_end(tmp_path: Path) -> None:
    program = """
        import sys, time
        import fsspec
        from fsspec.implementations.memory import MemoryFileSystem
        import otel_goodput as goodput

        class Hanging(MemoryFileSystem):
            protocol = "hanging"

            def pipe_file(self, *arguments, **options):
                time.sleep(3600)

        fsspec.register_implementation("hanging", Hanging)
        goodput.configure("job", directory=sys.argv[1], integrations="none", grace_period=2)
        with goodput.job():
            for number in range(20):
                with goodput.step(number):
                    time.sleep(0.05)
    """
    named = {"OTEL_GOODPUT_EXPORTERS": "tensorboard", "OTEL_GOODPUT_TENSORBOARD_DIR": "hanging://bucket/logs"}
    done = ran(program, tmp_path, **named, OTEL_METRIC_EXPORT_INTERVAL="100", OTEL_GOODPUT_STRICT="")
    assert done.returncode == 0 and open_run(tmp_path).totals().kept == 20
    assert re.search("metrics 0.* did not finish within", done.stderr), done.stderr  # on a busy machine, others too


def test_the_documents_name_every_tag() -> None:
    text = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
    sample = {
        semconv.GOODPUT_CATEGORY: "<category>",
        semconv.GOODPUT_STEP_STATE: semconv.STEP_KEPT,
        semconv.GOODPUT_DISRUPTION_REASON: "<reason>",
        semconv.GOODPUT_SLICE_STATE: "<state>",
        semconv.GOODPUT_RANK: "<rank>",
    }
    tags = [tag(sample) for tag in TAGS.values()]
    assert not [tag for tag in (*tags, MEAN_STEP_TIME) if f"`{tag}`" not in text]


@pytest.mark.release
def test_tensorboard_shows_them_in_a_browser(tmp_path: Path, port: int) -> None:
    with job(tmp_path) as recorder:
        train(recorder, 0, 20)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path), "--host", "127.0.0.1"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*command, "--port", str(port)], env=environ, **quiet) as process:  # type: ignore[call-overload]
        try:
            until(lambda: _tags(port))
            (tags,) = _tags(port).values()
            assert {"goodput/ratio", "badput/data_loading", "step_time/ideal_s"} <= tags.keys()
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
            tags_by_run: dict[str, dict[str, object]] = json.load(answer)
    except OSError:
        return {}
    return {run: tags for run, tags in tags_by_run.items() if tags}
