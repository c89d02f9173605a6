"""Programs written for ml-goodput-measurement, unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import warm

from compat.calls import calculator

PROGRAM = textwrap.dedent("""
    import sys, time, json
    from ml_goodput_measurement import goodput, monitoring
    from ml_goodput_measurement.src import goodput_utils
    import ml_goodput_measurement.goodput_elastic, ml_goodput_measurement.monitoring_elastic
    assert goodput_utils.BadputType.OTHER.value == 11
    assert monitoring.GCPOptions is goodput_utils.GCPOptions
    of = goodput.GoodputRecorder("job", "goodput_job", True)
    for event in ("job", "tpu_init"):
        getattr(of, f"record_{event}_start_time")()
    of.record_tpu_init_end_time()
    for step in range(5):
        of.record_step_start_time(step)
        time.sleep(0.01)
    of.record_job_end_time()
    google = [name for name in sys.modules if name.startswith(("google.cloud", "google.api", "grpc", "tensorboard"))]
    print(json.dumps({"argv": sys.argv, "name": __name__, "of": goodput.__name__, "google": google}))
""")


def run(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, "-m", "otel_goodput.compat", *arguments],
        cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


@pytest.mark.parametrize("as_module", [True, False])
def test_an_unchanged_program(tmp_path: Path, as_module: bool) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(PROGRAM)
    where = ("-m", "package.train") if as_module else ("package/train.py",)
    done = run(*where, "--steps", "5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["argv"][1:] == ["--steps", "5"] and answer["name"] == "__main__"
    assert answer["of"] == "otel_goodput.compat.goodput"
    assert answer["google"] == [], "nothing of Google's is imported"
    assert calculator().totals().kept == 5


def test_the_status_and_the_error_are_the_programs(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import ml_goodput_measurement\nraise SystemExit(7)")
    assert run("fails.py", cwd=tmp_path).returncode == 7
    done = run("missing.py", cwd=tmp_path)
    assert done.returncode == 1 and "missing.py" in done.stderr
    assert run(cwd=tmp_path).returncode == 2
    done = run("--help", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("usage: python -m otel_goodput.compat")


def test_both_libraries_in_one_process(tmp_path: Path) -> None:
    """Programs that have imported the original already get a warning; the original keeps working."""
    program = textwrap.dedent("""
        import sys, types
        original = sys.modules["ml_goodput_measurement"] = types.ModuleType("ml_goodput_measurement")
        import otel_goodput.compat
        try:
            otel_goodput.compat.install()
        except ImportError as error:
            print(error)
        assert sys.modules["ml_goodput_measurement"] is original
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "was imported before otel_goodput.compat.install()" in done.stdout


def test_names_that_programs_import_from_the_originals_modules() -> None:
    from otel_goodput.compat import goodput, goodput_utils

    for kind in ("", "Interval", "Elastic", "ElasticInterval"):
        name = f"{kind}WorkloadMetricDetails"
        assert getattr(goodput, name) is getattr(goodput_utils, name)


def test_an_argument_that_a_recorder_does_not_have() -> None:
    """A misspelled ``logging_enabled`` must not be a recorder that records nothing."""
    from otel_goodput.compat.goodput import GoodputRecorder

    GoodputRecorder("job", "goodput_job", background_batch_size=10)
    with pytest.raises(TypeError, match="logging_enable"):
        GoodputRecorder("job", "goodput_job", logging_enable=True)  # type: ignore[call-arg]


def test_together_with_this_packages_own_functions(tmp_path: Path, place: Path) -> None:
    program = textwrap.dedent("""
        import otel_goodput, otel_goodput.compat
        otel_goodput.compat.install()
        otel_goodput.compat.install()
        from ml_goodput_measurement import goodput
        otel_goodput.configure("mine")
        theirs = goodput.GoodputRecorder("theirs", "goodput_theirs", True)
        theirs.record_job_start_time()
        with otel_goodput.job():
            for step in range(3):
                theirs.record_step_start_time(step)
                with otel_goodput.step(step):
                    pass
        theirs.record_job_end_time()
        print(otel_goodput.totals().kept, goodput.GoodputCalculator("theirs", "goodput_theirs").totals().kept)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "3 3\n", done.stderr


def test_a_spawned_worker_records_nothing(tmp_path: Path, place: Path) -> None:
    """Its parent's module is imported again there, and with it the recorder that is made at the module's level."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            import multiprocessing
            from ml_goodput_measurement import goodput
            of = goodput.GoodputRecorder("job", "goodput_job", True)
            def load(number):
                return number
            if __name__ == "__main__":
                of.record_job_start_time()
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    for step in range(3):
                        of.record_step_start_time(step)
                        pool.map(load, [step])
                of.record_job_end_time()
        """)
    )
    (tmp_path / "sitecustomize.py").write_text("import otel_goodput.compat\notel_goodput.compat.install()\n")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in place.iterdir() if path.is_dir()] == ["job"], "no second run"
    assert calculator().totals().kept == 3


def test_where_opentelemetry_is_switched_off(tmp_path: Path, place: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    assert run("train.py", cwd=tmp_path, OTEL_SDK_DISABLED="true").returncode == 0
    assert not place.exists()
