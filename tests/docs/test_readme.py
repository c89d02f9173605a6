"""The README and the pages of the guide are true: their code runs, their commands work, their names and links exist."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import warm

import otel_goodput
from everyday import recipes
from otel_goodput import semconv
from otel_goodput._recording.phases import Phases
from otel_goodput._settings.envvars import STANDARD
from otel_goodput._settings.options import ENVVARS
from otel_goodput._tools import cli

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120
PROGRAMS: dict[str, list[str]] = {"python": [], "otel-goodput": ["-m", "otel_goodput"]}
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs/google-cloud").glob("*.md")),
        *sorted((ROOT / "docs/reference").glob("*.md")),
    )
}
README = PAGES["README.md"]
# Pages with other tests of what they say.
TESTED = {
    "docs/accounting.md",
    "docs/attack.md",
    "docs/journal.md",
    "docs/reasons.md",
    "docs/runs.md",
}
GUIDE = sorted(PAGES.keys() - TESTED)
# What needs the network, or runs these very tests.
NOT_HERE = (
    "make demo",
    "make test",
    "pip install -e '.[jax]'",
    "pip install -e '.[gcp]'",
    "pip install -e '.[otlp,serve]'",
    "pip install build && python -m build",
    'pip install "$(echo dist/*.whl)[otlp,serve]"',
)


RECIPES = {(page, name) for page, names in recipes.ON.items() for name in names}
# `make everyday` runs them all, with libraries that are not here.
WITH_WHAT_IS_HERE = [name for name, text in recipes.RECIPES.items() if not recipes.lacking(text)]


class Block(NamedTuple):
    language: str
    text: str

    @property
    def file(self) -> str:
        """Name of the file that it is to be, by its first line; empty for a block that stands for itself."""
        named = re.match(r"# (\w+\.py)\n", self.text)
        return named[1] if named else ""


def blocks(page: str) -> list[Block]:
    return [Block(*fence) for fence in re.findall(r"^```(\w+)\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)]


def lines(block: Block) -> Iterator[str]:
    """The commands of a block, without what only comments on them."""
    for line in block.text.splitlines():
        command = line.partition(" #")[0].strip()
        if command and command not in NOT_HERE:
            yield command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the commands that an installation has."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in PROGRAMS.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-W", "error", *arguments])} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def run(command: list[str], here: Path, **options: Any) -> str:
    start = warm.run if command[0] == sys.executable else subprocess.run
    done = start(
        command, cwd=here, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL, **options
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def perform(line: str, here: Path, *, jax: bool = False) -> str:
    """As the shell does; what needs no shell is started in milliseconds. `jax`: Python's programs use it."""
    if not re.search(r"[|&;<>$*~`(]", line):
        words = shlex.split(line)
        named = list(takewhile(lambda word: re.match(r"[A-Z_]+=", word), words))
        program, *arguments = words[len(named) :]
        if program in PROGRAMS:
            environ = {**os.environ, **dict(word.split("=", 1) for word in named)}
            command = [sys.executable, "-W", "error", *PROGRAMS[program], *arguments]
            return run(command, here, env=environ, jax=jax and program == "python")
    return run(["bash", "-c", line], here)


@pytest.mark.servers
@pytest.mark.parametrize(
    "page", [page for page in GUIDE if any(one.language in ("python", "sh") for one in blocks(page))]
)
def test_all_of_it_from_top_to_bottom(
    page: str, here: Path, compiled: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block of Python and every command of a block of `sh`, in order, in one folder.

    Blocks of `bash` need a cloud: :func:`test_commands_for_a_cloud_are_written_right` looks at them.
    """
    from emulators.google import GoogleEmulator
    from exporters.backends import grpc_backend

    jax = any("import jax" in block.text for block in blocks(page) if block.language == "python")
    for name, text in compiled.items() if jax else ():
        monkeypatch.setenv(name, text)
    outputs: dict[str, str] = {}
    with grpc_backend() as received, GoogleEmulator(projects=["my-project"]) as google:
        # A machine of Google's would tell its project.
        on_google = f"export OTEL_GOODPUT_GCP_ENDPOINT={google.endpoint} OTEL_GOODPUT_GCP_PROJECT=my-project; "
        before = on_google if "/google-cloud/" in page else ""
        for block in blocks(page):
            if block.language == "python" and block.file:
                (here / block.file).write_text(block.text)
            elif block.language == "python":
                outputs[block.text] = run([sys.executable, "-W", "error", "-c", block.text], here)
            elif block.language == "sh":
                for line in lines(block):
                    there = line.replace("http://localhost:4317", received.endpoint)
                    if line.startswith("export "):  # for all that come after it
                        before += f"{there}; "
                    elif page == "README.md":
                        outputs[line] = run(["bash", "-c", there], here)
                    else:
                        outputs[line] = perform(before + there, here, jax=jax)
    for block in blocks(page):
        commanded = any(line.startswith("python ") and block.file in line.split() for line in outputs)
        assert not block.file or commanded or (page, block.file) in RECIPES, f"{block.file} is never run"
    if page == "README.md":
        printed = outputs["python train.py"]
        assert printed.startswith("Goodput of first, 1 attempt, since ") and "200 started = 200 kept" in printed
        assert outputs["otel-goodput report"].splitlines()[0] == printed.splitlines()[0].replace("not ended", "ended")
    if page == "docs/google-cloud/laptop.md":
        assert {"BatchWriteSpans", "CreateTimeSeries"} <= {request.method for request in google.requests}
        assert outputs["otel-goodput doctor --gcp"].startswith("Ready: ")
        assert len({span.name for span in google.spans}) > 100 and google.refusals == []
        assert sum(series.type.startswith("workload.googleapis.com/") for series in google.series) == 95
    if page == "docs/report.md":
        assert "7.000 s" in outputs["otel-goodput replay timeline.jsonl"]
    if page == "docs/tutorial.md":
        report = json.loads(perform("otel-goodput report goodput --run tutorial --json", here))
        assert report["steps"] == {"executed": 300, "kept": 300, "lost": 0}
        assert (here / "report.html").stat().st_size > 100_000
        assert "tutorial-2" in outputs["otel-goodput runs"]
        printed = outputs["python train.py 300"]
        assert printed.startswith("Goodput of tutorial, run tutorial-2, 1 attempt, since ")
        for word in ("productive", "data_loading", "checkpoint_save", "custom eval", "300 started = 300 kept"):
            assert word in printed
        listed = outputs["ls goodput/tutorial/"]
        assert "traces-" in listed and "metrics-" in listed
        assert json.loads(outputs["otel-goodput report --json"])["run_id"] == "tutorial"
        assert "step" in received.span_names() and "goodput.time" in received.metric_names()


@pytest.mark.jax
@pytest.mark.parametrize("name", WITH_WHAT_IS_HERE)
def test_recipes_run_and_run_again(name: str, tmp_path: Path) -> None:
    """Those that save checkpoints find one the second time."""
    for _ in range(2):
        assert recipes.perform(name, tmp_path, partial(warm.run, jax=True)).count("Goodput of ") == 1
        shutil.rmtree(tmp_path / "goodput")


def test_there_are_recipes_for_the_libraries_that_people_train_with() -> None:
    libraries = {
        "orbax",
        "flax",
        "keras",
        "lightning",
        "torch",
        "torch_save",
        "transformers",
        "accelerate",
        "ray",
        "grain",
    }
    assert {f"with_{name}.py" for name in libraries} == set(recipes.RECIPES)


def test_blocks_say_what_they_are() -> None:
    for page in GUIDE:
        assert {block.language for block in blocks(page)} <= {"python", "sh", "bash", "yaml", "json", "text", "toml"}, (
            page
        )
        assert PAGES[page].count("\n```") % 2 == 0, page


@pytest.mark.parametrize("page", [page for page in GUIDE if any(one.language == "bash" for one in blocks(page))])
def test_commands_for_a_cloud_are_written_right(page: str) -> None:
    """The shell can read them, and our own command takes what it is given in them."""
    for block in blocks(page):
        if block.language != "bash":
            continue
        done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), block.text
        for command in re.findall(r"^ *otel-goodput (.*)$", block.text.replace("\\\n", " "), re.MULTILINE):
            words = shlex.split(re.split(r" [>|&#]", command)[0])
            assert cli.command_parser().parse_args(words), command


def test_no_heading_stands_over_nothing() -> None:
    empty = []
    for page, whole in PAGES.items():
        text = re.sub(r"^```.*?^```$", "block", whole, flags=re.DOTALL | re.MULTILINE)
        text = re.sub(r"^<!--.*?-->\n", "", text, flags=re.MULTILINE)
        headings = re.findall(r"^(#+) (.*)\n+(?=(#+) |\Z)", text, re.MULTILINE)
        empty += [(page, title) for level, title, following in headings if len(following) <= len(level)]
    assert empty == []


def test_what_is_not_run_here_is_there() -> None:
    commands = [
        line.partition(" #")[0].strip() for page in GUIDE for one in blocks(page) for line in one.text.splitlines()
    ]
    makefile = (ROOT / "Makefile").read_text()
    for command in NOT_HERE:
        assert command in commands
        if command.startswith("make "):
            assert f"\n{command.removeprefix('make ')}: " in makefile


def test_links_lead_somewhere() -> None:
    links = [
        (page, *link) for page in sorted(PAGES) for link in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", PAGES[page])
    ]
    for page, target, anchor in links:
        if "://" in target:
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), (page, target)
        if path.suffix == ".png":
            assert anchor in ("", "only-light", "only-dark"), (
                target,
                anchor,
            )  # pictures of one color scheme of the site
        elif anchor:
            titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
            assert anchor in slugs, (page, target, anchor)


def test_variables_exist() -> None:
    known = {variable.name for variable in (*ENVVARS, *STANDARD)}
    for page in GUIDE:
        assert set(re.findall(r"\bOTEL_[A-Z_]+\b", PAGES[page])) <= known, page


def test_functions_and_arguments_exist() -> None:
    arguments = inspect.signature(otel_goodput.configure).parameters
    phase = inspect.signature(Phases.data_loading).parameters
    processor = inspect.signature(otel_goodput.GoodputSpanProcessor).parameters
    for page in GUIDE:
        assert set(re.findall(r"\bgoodput\.(\w+)\(", PAGES[page])) <= set(otel_goodput.__all__), page
        given = set(re.findall(r"`(\w+)=`", PAGES[page])) | set(re.findall(r"configure\((\w+)=", PAGES[page]))
        assert given <= {*arguments, *phase, *processor}, page


def test_names_on_the_wire_exist() -> None:
    keys = {value for value in vars(semconv).values() if isinstance(value, str)}
    known = keys | {metric.name for metric in semconv.METRICS} | {one.key for one in semconv.SPAN_ATTRIBUTES}
    for page in GUIDE:
        named = set(re.findall(r"`((?:goodput|badput|service|host|process)\.[\w.]+\w)`", PAGES[page]))
        assert named <= known, page


def test_the_readme_is_short_and_begins_with_what_a_reader_needs() -> None:
    """What the project is, then the two commands that show it."""
    assert README.count("\n") <= 150
    first = blocks("README.md")[0]
    assert [line.split(" #")[0].strip() for line in first.text.splitlines()] == ["make demo", "make test"]
    assert README.index("```") < 1200
