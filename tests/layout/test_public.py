"""Which names are public: what a later version may not take away. All else is ours to change."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import otel_goodput
from otel_goodput._recording.phases import Phases

ROOT = Path(otel_goodput.__file__).parents[1]

FUNCTIONS = {name for name, one in vars(Phases).items() if callable(one) and not name.startswith("_")}
PUBLIC = {
    "otel_goodput": {
        *("configure", "flush", "shutdown", "report", "totals", "on_preemption", "count_flops", "checkpoint_logger"),
        *("open_run", "open_runs", "Run", "Recorder", "GoodputSpanProcessor", "__version__"),
        *("GoodputError", "ConfigurationError", "JournalError", "PhaseError"),
        *FUNCTIONS,
    },
    "otel_goodput.testing": {"FakeClock", "Recording", "metrics", "run"},
    "otel_goodput.exporters.spec": {
        *("Destination", "ExporterContext", "ExporterSpec", "ExporterUnavailable", "Exporters", "Situation"),
        *("METRICS", "SIGNALS", "TRACES"),
    },
    "otel_goodput.compat": {"install"},
}
# Tables of names, all of them public.
TABLES = {"otel_goodput.semconv", "otel_goodput.reports.fields"}
# Each module in it needs its framework, so it is read instead of imported.
TRAINERS = "otel_goodput.integrations"


@pytest.mark.parametrize("module", PUBLIC)
def test_the_names_are_these(module: str) -> None:
    loaded = import_module(module)
    assert set(loaded.__all__) == PUBLIC[module] and len(loaded.__all__) == len(PUBLIC[module])
    assert all(hasattr(loaded, name) for name in loaded.__all__)


def test_a_package_with_nothing_public_has_an_underscore() -> None:
    packages = {path.parent.name for path in (ROOT / "otel_goodput").glob("*/__init__.py")}
    public = {name.split(".")[1] for name in {*PUBLIC, *TABLES, TRAINERS} if name.count(".")}
    assert {name for name in packages if not name.startswith("_")} == packages & public


def test_the_reference_says_which_modules_are_public() -> None:
    text = (ROOT / "docs/reference/functions.md").read_text(encoding="utf-8").partition("## Recording")[0]
    assert set(re.findall(r"`(otel_goodput\.[a-z][a-z_.]+)`", text)) == {*PUBLIC, *TABLES, TRAINERS} - {"otel_goodput"}


def test_of_each_framework_the_callback_is_public() -> None:
    for path in (ROOT / "otel_goodput/integrations").glob("[!_]*.py"):
        names = [
            ast.literal_eval(one.value)
            for one in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"
        ]
        # Ray has no trainer of its own: the workers run the user's loop.
        assert names == [["configure" if path.stem == "ray" else "GoodputCallback"]], path.name


def test_programs_for_users_import_nothing_else() -> None:
    programs = {path: path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        programs |= {page / str(number): block for number, block in enumerate(blocks)}
    assert len(programs) > 20
    for place, program in programs.items():
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "otel_goodput":
                names = {alias.name for alias in node.names}
                inside = {f"{node.module}.{name}" for name in names} <= {*PUBLIC, *TABLES}
                inside |= (node.module or "").startswith(f"{TRAINERS}.") and names <= {"GoodputCallback", "configure"}
                assert inside or node.module in TABLES or names <= PUBLIC.get(node.module or "", set()), place
            elif isinstance(node, ast.Import):
                ours = {alias.name for alias in node.names if alias.name.partition(".")[0] == "otel_goodput"}
                assert ours <= {*PUBLIC, *TABLES}, place


def test_every_name_of_the_face_has_a_home_and_a_type() -> None:
    """What is imported when it is first used is also what type checkers see."""
    source = ast.parse(Path(otel_goodput.__file__).read_text(encoding="utf-8"))
    seen = {alias.name for node in ast.walk(source) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(otel_goodput.__all__) <= seen
