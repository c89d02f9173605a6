"""An exporter of another package: installed, found by its entry point, asked for by name or taken by `auto`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import warm

MODULE = """
import json, os
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from otel_goodput.exporters.spec import Destination, Exporters, ExporterSpec

class Spans(SpanExporter):
    def export(self, spans):
        with open(os.environ["ARCHIVE"], "a") as archive:
            archive.writelines(f"{span.name} {span.context.span_id:x}\\n" for span in spans)
        return SpanExportResult.SUCCESS

ARCHIVE = ExporterSpec(
    "archive",
    "lines in a file",
    lambda context: Exporters("archive", Spans(), None),
    lambda context: [Destination("traces", os.environ["ARCHIVE"])],
    signals=("traces",),
    auto=lambda situation: "ARCHIVE is set" if situation.environ.get("ARCHIVE") else "",
)
class Closing:
    # Says in the archive when it is shut down.
    def shutdown(self, *_, **__):
        with open(os.environ["ARCHIVE"], "a") as archive:
            archive.write(f"closed-{self.name}\\n")

class ClosingSpans(Closing, Spans):
    name = "traces"

    def export(self, spans):
        if os.environ.get("REFUSES"):
            raise KeyboardInterrupt
        return super().export(spans)

class ClosingMetrics(Closing, MetricExporter):
    name = "metrics"

    def export(self, *_, **__):
        return MetricExportResult.SUCCESS

    def force_flush(self, *_, **__):
        return True

CLOSING = ExporterSpec(
    "closing", "", lambda context: Exporters("closing", ClosingSpans(), ClosingMetrics()), ARCHIVE.describe
)
NEEDY = ExporterSpec("needy", "", ARCHIVE.open, ARCHIVE.describe, packages=lambda environ: ["not_there"],
                     auto=lambda situation: "always")
NONE_AT_ALL = "archive"
"""
ENTRY_POINTS = """[otel_goodput.exporters]
archive = of_others:ARCHIVE
needy = of_others:NEEDY
odd = of_others:NONE_AT_ALL
closing = of_others:CLOSING
broken = of_nobody:ARCHIVE
otlp = of_others:ARCHIVE
"""
METADATA = "Metadata-Version: 2.1\nName: of-others\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
JOB = """
import os, signal, sys
import otel_goodput as goodput
goodput.configure("job", run_id="run", directory=sys.argv[1], exporters=sys.argv[2], integrations="none")
with goodput.job():
    with goodput.step(0):
        pass
    if sys.argv[3] == "kill":
        goodput.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is, installed as pip does."""
    place = tmp_path_factory.mktemp("others")
    wheel = place / "of_others-1.0-py3-none-any.whl"
    files = {
        "of_others.py": MODULE,
        "of_others-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
        "of_others-1.0.dist-info/METADATA": METADATA,
        "of_others-1.0.dist-info/WHEEL": WHEEL,
    }
    record = "".join(f"{name},,\n" for name in (*files, "of_others-1.0.dist-info/RECORD"))
    with zipfile.ZipFile(wheel, "w") as content:
        for name, text in {**files, "of_others-1.0.dist-info/RECORD": record}.items():
            content.writestr(name, text)
    target = place / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], check=True, timeout=300)
    return target


@pytest.fixture
def environment(installed: Path, tmp_path: Path) -> dict[str, str]:
    path = os.pathsep.join([str(installed), os.environ["PYTHONPATH"]])
    strict = "0"  # mistakes of others are logged, not raised
    return {**os.environ, "PYTHONPATH": path, "ARCHIVE": str(tmp_path / "archive"), "OTEL_GOODPUT_STRICT": strict}


def train(
    tmp_path: Path, environment: dict[str, str], exporters: str, ending: str = "end"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", JOB, str(tmp_path / "runs"), exporters, ending]
    return warm.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def names(tmp_path: Path) -> list[str]:
    return sorted(line.split()[0] for line in (tmp_path / "archive").read_text().splitlines())


@pytest.mark.parametrize("exporters", ["archive", "ARCHIVE,file", "auto"])
def test_it_is_selected_like_ours(exporters: str, tmp_path: Path, environment: dict[str, str]) -> None:
    done = train(tmp_path, environment, exporters)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == ["attempt", "job", "step"]


def test_after_a_kill_it_has_what_it_has_not_had(tmp_path: Path, environment: dict[str, str]) -> None:
    train(tmp_path, environment, "archive", "kill")
    assert names(tmp_path) == ["attempt", "step"]
    done = train(tmp_path, environment, "archive,file")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "archive").read_text().splitlines()
    assert names(tmp_path) == ["attempt"] * 2 + ["job"] * 2 + ["step"] * 2 and len(set(lines)) == 6


def doctor(tmp_path: Path, environment: dict[str, str], exporters: str) -> dict[str, list[str]]:
    """What is found, by exporter."""
    command = [sys.executable, "-m", "otel_goodput", "doctor", "--json"]
    variables = {**environment, "OTEL_GOODPUT_EXPORTERS": exporters, "OTEL_GOODPUT_DIR": str(tmp_path / "runs")}
    done = warm.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    by_subject: dict[str, list[str]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        if finding["about"].startswith("exporter"):
            by_subject.setdefault(finding["about"], []).append(f"{finding['level']}: {finding['what']}")
    return by_subject


def test_doctor_says_where_it_goes_and_what_is_wrong(tmp_path: Path, environment: dict[str, str]) -> None:
    findings = doctor(tmp_path, environment, "archive,needy,odd,broken")
    assert findings["exporter archive"] == [f"ok: traces to {tmp_path / 'archive'}"]
    assert findings["exporter needy"] == ["problem: cannot be opened: no module named 'not_there'"]
    assert findings["exporter odd"] == ["problem: cannot be opened: of_others:NONE_AT_ALL is not an ExporterSpec"]
    assert "ModuleNotFoundError" in findings["exporter broken"][0]
    by_itself = doctor(tmp_path, environment, "auto")
    assert by_itself["exporter archive"] == [f"ok: traces to {tmp_path / 'archive'}"]
    assert "always, but not_there is not installed" in by_itself["exporter needy"][0]


def test_doctor_shuts_down_what_it_has_opened(tmp_path: Path, environment: dict[str, str]) -> None:
    assert doctor(tmp_path, environment, "closing")["exporter closing"] == [f"ok: traces to {tmp_path / 'archive'}"]
    assert names(tmp_path) == ["closed-metrics", "closed-traces"]


@pytest.mark.parametrize("refuses", ["", "1"])
def test_recover_shuts_down_what_it_has_opened(refuses: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """Also where it is interrupted."""
    train(tmp_path, environment, "none", "kill")
    command = [sys.executable, "-m", "otel_goodput", "recover", str(tmp_path / "runs"), "--exporters", "closing"]
    variables = {**environment, "REFUSES": refuses}
    done = warm.run(command, env=variables, capture_output=True, timeout=120, check=False)
    assert (done.returncode == 0) == (not refuses), done.stderr
    exported = [] if refuses else ["attempt", "job", "step"]
    assert names(tmp_path) == sorted([*exported, "closed-metrics", "closed-traces"])


def test_what_nobody_registers_is_refused_with_all_that_is_known(tmp_path: Path, environment: dict[str, str]) -> None:
    done = train(tmp_path, environment, "archives")
    assert done.returncode == 1
    known = "archive, broken, closing, console, file, gcp, gcp-otlp, needy, odd, otlp, tensorboard, workload"
    assert f"unknown exporter 'archives'; known are auto, none, {known}" in done.stderr
