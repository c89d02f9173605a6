"""The tables of the documentation say what the package says, and ``docs/tables.py`` keeps them so."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import warm
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_goodput
from otel_goodput import semconv
from otel_goodput._accounting.incidents import STEP, Incident, Source
from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.own_time import OwnTimes, OwnWindow, RankTime
from otel_goodput._accounting.rules import DATA_LOADING_TIME
from otel_goodput._accounting.stats import Pace
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._journal.usage_now import UsageNow
from otel_goodput._metrics.instruments import register_incidents, register_own_times, register_ranks, register_usage
from otel_goodput._resources import process
from otel_goodput._settings import envvars, options
from otel_goodput._tools import cli, commands
from otel_goodput.testing import metrics

ROOT = Path(__file__).parents[2]
PACKAGE = Path(otel_goodput.__file__).parent


DOCS = ROOT / "docs"
SOURCES = ("docs/tables.py", "docs/reference_functions.py", "docs/reference_commands.py", "tests/otelcol/outcomes.py")


def load() -> ModuleType:
    if str(DOCS) not in sys.path:  # as for a script that lies there
        sys.path.append(str(DOCS))
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, str(root / "docs" / "tables.py"), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def copy_to(folder: Path) -> None:
    for each in (*SOURCES, *load().FILES):
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / each, folder / each)


@pytest.mark.parametrize("name", load().FILES)
def test_the_tables_are_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert load().renewed(name, text) == text, "run python docs/tables.py"


def test_the_command_finds_them_up_to_date() -> None:
    assert tables("--check").returncode == 0


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("docs/reference/metrics.md", "`goodput.time` | ", "`goodput.tide` | "),
        ("docs/collector/faults.md", "| answers that are lost |", "| answers that are late |"),
    ],
)
def test_tables_that_are_out_of_date_are_found_and_renewed(name: str, right: str, wrong: str, tmp_path: Path) -> None:
    copy_to(tmp_path)
    readme = tmp_path / name
    good = readme.read_text(encoding="utf-8")
    readme.write_text(good.replace(right, wrong, 1), encoding="utf-8")
    stale = tables("--check", root=tmp_path)
    assert stale.returncode == 1
    assert f"out of date: {name}; run python docs/tables.py" in stale.stderr
    assert wrong in readme.read_text(encoding="utf-8"), "--check changes nothing"
    assert tables(root=tmp_path).returncode == 0
    assert readme.read_text(encoding="utf-8") == good


def test_markers_are_needed() -> None:
    with pytest.raises(ValueError, match="'phases'"):
        load().renewed("docs/reference/phases.md", "no tables here")


PAGE = "docs/reference/configuration.md"


@pytest.mark.parametrize(
    ("old", "new", "refusal"),
    [
        ("## Environment variables\n", "## The demo\n", "'environment' belongs under 'Environment variables'"),
        ("## Arguments without a variable\n", "", "'arguments' belongs under 'Arguments without a variable'"),
        ("<!-- begin: arguments -->\n", "", "needs the markers of 'arguments' once each"),
        ("## Arguments", "## Speed\n\n## Arguments", "nothing stands under 'Speed'"),
        ("## Arguments", "<!-- begin: speed -->\n<!-- end: speed -->\n\n## Arguments", "nothing makes: speed"),
        ("# Configuration\n", "# Configuration\n\n```text\n# no heading\n```\n", ""),
    ],
)  # fmt: skip
def test_a_table_belongs_under_its_heading(old: str, new: str, refusal: str) -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert old in text
    if not refusal:
        load().renewed(PAGE, text.replace(old, new, 1))
        return
    with pytest.raises(ValueError, match=re.escape(refusal)):
        load().renewed(PAGE, text.replace(old, new, 1))


def test_a_missing_table_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    copy_to(tmp_path)
    page, stale = tmp_path / PAGE, tmp_path / "docs/reference/metrics.md"
    page.write_text(re.sub(r"<!-- begin: arguments.*end: arguments -->\n", "", page.read_text(), flags=re.DOTALL))
    stale.write_text(stale.read_text().replace("`goodput.time` | ", "`goodput.tide` | "))
    for arguments in ([], ["--check"]):
        done = tables(*arguments, root=tmp_path)
        assert (done.returncode, done.stderr) == (1, f"{PAGE} needs the markers of 'arguments' once each\n")
    assert "goodput.tide" in stale.read_text()


def test_every_page_has_its_tables_marked() -> None:
    """The README's and the collector's alerts have other tests."""
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in DOCS.rglob("*.md")
        if "<!-- begin: " in path.read_text(encoding="utf-8")
    }
    assert marked - {"docs/collector/alerts.md"} == {name for name in load().FILES if name.endswith(".md")}


def test_what_the_collector_survives_is_shown_by_tests_that_there_are() -> None:
    folder = ROOT / "tests/otelcol"
    shown = [each for outcome in load().outcomes().ELSEWHERE for each in outcome.shown]
    assert len(shown) > 10
    for each in shown:
        file, _, test = each.partition("::")
        assert f"\ndef {test}(" in (folder / file).read_text(encoding="utf-8"), each


def test_metrics_in_the_table_are_those_that_are_exported(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    for _ in range(2):  # a run that has been restarted
        with otel_goodput.Recorder("job", directory=tmp_path, run_id="run", exporters="none") as before, before.job():
            pass
    recorder = otel_goodput.Recorder(
        "job", run_id="run", directory=tmp_path, exporters="none", metric_readers=[reader], submitted_at=1e9,
        flops_per_step=1e6, peak_flops=1e12, process_count=2, objective=0.9,
    )  # fmt: skip
    run = RunDirectory(tmp_path / recorder.run_id)
    other = Pace(1, time.time_ns(), 20, 10**6, 10**6, 0)
    run.file("pace", 1).write_bytes(checked_json({"attempt": recorder.attempt, **other._asdict()}))
    assert recorder.tracer is not None
    meter = recorder.meter_provider.get_meter(semconv.SCOPE_NAME)
    register_ranks(meter, lambda: {Cause(1, DATA_LOADING_TIME, ""): 10**9})
    window = OwnWindow(0, 1, 1, 2, 1, 1, 1, (5,), (RankTime(5, 2, 0),))
    register_own_times(meter, lambda: OwnTimes(windows=(window,)))
    register_incidents(meter, lambda: [Incident(1, semconv.IncidentKind.HANG, Source(STEP), 1, 2)])
    register_usage(meter, lambda: {0: ("", UsageNow(*[1] * len(UsageNow._fields)))})
    recorder.tracer.hooks.compile_cache.use()
    recorder.tracer.hooks.stages.take(0, (1, 1, 1, 1, 1), (1, 1, 1, 0, 0))
    recorder.tracer.hooks.waits = dict.fromkeys(semconv.SCHEDULING_STAGES, 10**9)
    with recorder.job():
        recorder.slice_counts(1, 1, 1)
        with recorder.training_prep():
            pass
        for number in recorder.loading((*range(12), *range(8, 12)), queue_depth=lambda: 3):
            with recorder.step(number), recorder.part("forward"):
                pass
    recorder.flush(10)
    exported = set(metrics(reader))
    recorder.shutdown(10)
    listed = set(re.findall(r"^\| `([\w.]+)`", load().metrics(), re.MULTILINE))
    assert listed == exported


def test_attributes_of_the_resource_are_those_that_there_are() -> None:
    """Those of a job, and no key of the names is missing but for what only translations to Google's series have."""
    names = (PACKAGE / "semconv.py").read_text().partition("# --- resource ---")[2]
    keys = set(re.findall(r'^[A-Z0-9_]+: Final = "([\w.]+)"', names, re.MULTILINE))
    assert keys == {semconv.SERVICE_NAMESPACE, semconv.REPLICA_ID}  # all others are declared as attributes
    resource = process.describe("job", "run", 1, 0, 1)
    assert resource.wait(5)
    always = {one.key for one in semconv.RESOURCE_ATTRIBUTES if one.on == "always"}
    assert always <= set(resource.attributes)
    assert {key for key in resource.attributes if not key.startswith("telemetry.sdk.")} <= {
        one.key for one in semconv.RESOURCE_ATTRIBUTES
    }


def functions() -> ModuleType:
    load()
    return importlib.import_module("reference_functions")


def test_every_public_name_is_on_the_page_of_functions() -> None:
    page, made = (ROOT / "docs/reference/functions.md").read_text(encoding="utf-8"), functions()
    groups = (made.RECORDING, made.PHASES, made.FIGURES, made.CLASSES, made.ERRORS)
    listed = [name for group in groups for name in group]
    assert sorted([*listed, "__version__"]) == sorted(otel_goodput.__all__)
    assert "`otel_goodput.__version__`" in page
    for name in listed:
        assert re.search(rf"^### {name}(\(\))?$|^\| `{name}` ", page, re.MULTILINE), name


def test_every_argument_is_explained() -> None:
    assert functions().unexplained() == []
    page = (ROOT / "docs/reference/functions.md").read_text(encoding="utf-8")
    section = page.partition("### configure()\n")[2].partition("\n### ")[0]
    listed = re.findall(r"^\| `(\w+)` ", section, re.MULTILINE)
    assert listed == list(inspect.signature(otel_goodput.configure).parameters)
    assert not re.search(r"^\| `\*{0,2}\w+` \|.*\|  \|$", page.partition("## Errors")[0], re.MULTILINE)


def test_no_reference_of_a_docstring_is_left_as_it_is() -> None:
    page = (ROOT / "docs/reference/functions.md").read_text(encoding="utf-8")
    assert not re.search(r":(meth|class|func|attr):|``(?!`)(?<!```)|\{options\}|<function", page.replace("```", ""))


def test_every_command_and_option_is_on_the_page_of_the_command_line() -> None:
    """As `--help` tells them, asked of the command itself."""
    page = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### ([\w ]+)\n(.*?)(?=^### |^<!-- end)", page, re.MULTILINE | re.DOTALL))
    top = helped()
    names = re.findall(r"^    (\w+) ", top, re.MULTILINE) + re.findall(r"^    (\w+)$", top, re.MULTILINE)
    assert set(names) | {"collector config", "collector systemd", "collector k8s"} == set(sections)
    for name, section in sections.items():
        options = set(re.findall(r"^  (--[\w-]+)", helped(*name.split()), re.MULTILINE))
        assert set(re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE)) == options, name


def helped(*command: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit):
        cli.main([*command, "--help"])
    return output.getvalue()


def test_every_status_that_the_command_ends_with_is_in_its_table() -> None:
    assert {0, 1, 2, 3, 4, 5, 130} == set(commands.EXIT_STATUSES)
    for status, meaning in commands.EXIT_STATUSES.items():
        assert f"| {status} | {meaning} |" in (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")


def test_variables_in_the_table_are_those_that_there_are() -> None:
    listed = re.findall(r"^\| `(OTEL_\w+)`", load().environment(), re.MULTILINE)
    assert listed == [one.name for one in (*options.ENVVARS, *envvars.STANDARD)]
    read = {
        name for path in PACKAGE.rglob("*.py") for name in re.findall(r"\bOTEL_GOODPUT_[A-Z_]+\b", path.read_text())
    }
    assert read <= {name for name in listed if name.startswith("OTEL_GOODPUT_")}
