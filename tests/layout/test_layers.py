"""One way: a file imports from its own layer or from those below it, and the core stands on the standard library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import otel_goodput

PACKAGE = Path(otel_goodput.__file__).parent

# Every module's layer; a package stands for all that is in it, but for those that lie in several layers. Those of one
# layer do not know each other.
LAYERS: tuple[tuple[str, frozenset[str]], ...] = (
    ("words", frozenset({"semconv", "_settings.envvars", "errors", "version", "_text"})),
    (
        "edge of the process",
        frozenset(
            {
                "_runtime.answers",
                "_runtime.guard",
                "_runtime.files",
                "_runtime.installation",
                "_settings.devices",
                "_settings.placement",
            }
        ),
    ),
    ("pure core", frozenset({"_accounting"})),
    ("table of settings", frozenset({"_settings.options"})),
    ("settings and the end", frozenset({"_settings.config", "_runtime.deadline", "_runtime.host"})),
    ("memory", frozenset({"_journal"})),
    ("what the memory tells", frozenset({"_timeline"})),
    ("phases, and what is shown of them", frozenset({"_recording", "_metrics"})),
    ("the account live and on paper, what watches", frozenset({"_live", "reports", "_integrations", "_disruption"})),
    (
        "where it runs, what is wrong, and on providers of the user's own",
        frozenset({"_resources", "_runtime.standalone", "_incidents"}),
    ),
    ("exporters, observers, the page", frozenset({"exporters", "_runtime.observers", "_viewer"})),
    ("pipelines", frozenset({"_runtime.pipelines"})),
    ("in place of the leader", frozenset({"_runtime.deputy"})),
    ("recorder, runs of the past", frozenset({"_runtime.recorder", "runs"})),
    ("recorder of a whole program", frozenset({"_runtime.program"})),
    ("module functions", frozenset({"api"})),
    ("those of others, and their tests", frozenset({"compat", "integrations", "testing"})),
    ("programs of others", frozenset({"_programs"})),
    ("_tools", frozenset({"_tools"})),
    ("command", frozenset({"__main__"})),
    ("face", frozenset({""})),
)
# What the accounting may take from the standard library: nothing that tells time, logs, waits or reads.
PURE = frozenset(
    {
        "__future__",
        "array",
        "bisect",
        "collections",
        "collections.abc",
        "copy",
        "dataclasses",
        "heapq",
        "html",
        "itertools",
        "math",
        "operator",
        "statistics",
        "typing",
    }
)


def name_of(path: Path) -> str:
    """A module's name within the package, '' for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


SPREAD = ("_settings", "_runtime")  # packages whose modules lie in several layers


def unit(module: str) -> str:
    """What stands in a layer: a package, or a module of a package that lies in several."""
    top, _, rest = module.partition(".")
    return f"{top}.{rest.partition('.')[0]}" if top in SPREAD and rest else top


def layer(module: str) -> int:
    places = [number for number, (_, members) in enumerate(LAYERS) if unit(module) in members]
    assert len(places) == 1, f"otel_goodput.{module} must stand in LAYERS, once"
    return places[0]


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def _statements(module: str, *, at_import: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements; `at_import`: without those inside functions and for type checkers."""
    waiting: list[ast.AST] = [tree(module)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        if at_import and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
        elif not (at_import and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))):
            waiting += ast.iter_child_nodes(node)


def _named(module: str) -> Iterator[str]:
    """Modules of ours that a string names, as the tables of what is imported when it is used do: ``place:function``."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name, colon, _ = node.value.partition(":")
            if colon and name.removeprefix("otel_goodput.") in FILES and name.startswith("otel_goodput."):
                yield name


def imports(module: str, *, at_import: bool = False) -> Iterator[str]:
    """Full names of what a module imports."""
    for statement in _statements(module, at_import=at_import):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
            continue
        assert statement.level == 0, f"otel_goodput.{module}: imports are absolute"
        assert statement.module is not None
        for alias in statement.names:
            whole = f"{statement.module}.{alias.name}"
            yield whole if whole.removeprefix("otel_goodput.") in FILES else statement.module


def ours(module: str) -> set[str]:
    """Names within the package of what a module imports of it, whenever, and for whomever."""
    used = {
        name.removeprefix("otel_goodput").removeprefix(".")
        for name in (*imports(module), *_named(module))
        if name.partition(".")[0] == "otel_goodput"
    }
    return used - {module}


def test_every_layer_is_of_what_is_there() -> None:
    there = {unit(module) for module in FILES} - {*SPREAD}
    assert {member for _, members in LAYERS for member in members} == there


def test_imports_go_down() -> None:
    assert not [
        f"otel_goodput.{module} ({LAYERS[layer(module)][0]}) imports otel_goodput.{other} ({LAYERS[layer(other)][0]})"
        for module in FILES
        for other in ours(module)
        if other.partition(".")[0] != module.partition(".")[0] and layer(other) >= layer(module)
    ]


def test_nothing_imports_in_circles() -> None:
    """Including imports for type checkers and inside functions."""
    done: set[str] = set()

    def follow(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for other in sorted(ours(module)):
                follow(other, (*path, module))
            done.add(module)

    for module in FILES:
        follow(module, ())


def test_the_core_is_pure() -> None:
    """No OpenTelemetry, no clock, no threads, no logging, no files."""
    offenses = []
    for module in (module for module in FILES if module.partition(".")[0] == "_accounting"):
        for name in imports(module):
            inside = name == "otel_goodput.semconv" or name.startswith("otel_goodput._accounting")
            if not inside and name not in PURE:
                offenses.append(f"otel_goodput.{module} imports {name}")
        called = {
            node.func.id
            for node in ast.walk(tree(module))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        forbidden = called & {"open", "print", "input", "exec", "eval", "__import__"}
        offenses += [f"otel_goodput.{module} calls {name}" for name in forbidden]
    assert not offenses


def test_what_the_core_may_take_it_takes() -> None:
    core = [name for module in FILES if module.partition(".")[0] == "_accounting" for name in imports(module)]
    assert set(core) >= PURE


def test_imports_are_declared() -> None:
    """At import: the standard library, OpenTelemetry's API and SDK, ourselves. All else only where it is used.

    A module for a framework is where that is used.
    """
    allowed = {*sys.stdlib_module_names, "otel_goodput", "opentelemetry"}
    assert not [
        f"otel_goodput.{module} imports {name}"
        for module in FILES
        for name in imports(module, at_import=True)
        if name.partition(".")[0] not in {*allowed, module.removeprefix("integrations.")}
        or name.startswith("opentelemetry.exporter")
    ]


def test_providers_are_built_in_one_place() -> None:
    built = {"TracerProvider", "MeterProvider", "LoggerProvider", "BatchSpanProcessor", "PeriodicExportingMetricReader"}
    for module in FILES:
        calls = {
            node.func.id
            for node in ast.walk(tree(module))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        if module != "_runtime.pipelines":
            assert not calls & built, f"otel_goodput.{module} builds {calls & built}"


def test_a_long_file_says_why() -> None:
    folders = ("otel_goodput", "collector", "tests", "examples", "benchmarks", "everyday", "docs", ".ci")
    for path in (path for folder in folders for path in (PACKAGE.parent / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) > 600:
            assert "Longer than other files" in (ast.get_docstring(ast.parse(text)) or ""), path


def test_no_file_is_called_after_nothing() -> None:
    for module in FILES:
        assert module.rpartition(".")[2] not in {
            "utils",
            "util",
            "common",
            "helpers",
            "helper",
            "base",
            "manager",
            "misc",
        }


# Modules under sixty lines that one other module imports, or none, and why they stay by themselves.
FRAGMENTS = {
    "__main__": "python -m otel_goodput",
    "compat.__main__": "python -m otel_goodput.compat",
    "_integrations.safetensors": "imported by its name when the library is",
    "_programs.notebook": "%load_ext otel_goodput, in which nothing else is of use",
    "integrations._doors": "found by entry points, and imports nothing heavy",
    "integrations.trl": "its users look for it by the name of their framework",
}


def test_nothing_is_a_fragment() -> None:
    """A short module that only one other imports belongs into that one."""
    importers: dict[str, set[str]] = {module: set() for module in FILES}
    for module in FILES:
        for other in ours(module):
            importers[other].add(module)
    used = {
        module
        for module, path in FILES.items()
        if path.name != "__init__.py"
        and len(importers[module]) <= 1
        and len(path.read_text(encoding="utf-8").splitlines()) < 60
    }
    assert used <= FRAGMENTS.keys()
    assert {*FRAGMENTS} <= {*FILES}
