"""What makes and announces a release: the workflow, the steps that people take, and CITATION.cff."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_goodput.version import __version__

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
RELEASE = WORKFLOWS / "release.yml"
CITATION = ROOT / "CITATION.cff"


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def checked(schema: str, path: Path) -> subprocess.CompletedProcess[str]:
    """What check-jsonschema says of a file by one of the schemas that it brings."""
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def workflow() -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(RELEASE.read_text(encoding="utf-8"))
    return loaded


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


# --- by their schemas -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("vendor.citation-file-format", CITATION),
        *(
            (schema, path)
            for path in sorted(WORKFLOWS.glob("*.yml"))
            for schema in ("vendor.github-workflows", "custom.github-workflows-require-timeout")
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_a_file_is_valid(schema: str, path: Path) -> None:
    done = checked(schema, path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "path", "line"),
    [
        ("vendor.citation-file-format", CITATION, "authors:\n"),
        ("vendor.citation-file-format", CITATION, "cff-version: 1.2.0\n"),
        ("vendor.github-workflows", RELEASE, "    runs-on: ubuntu-latest\n"),
        ("custom.github-workflows-require-timeout", RELEASE, "    timeout-minutes: 15\n"),
    ],
)
def test_a_file_that_lacks_a_line_is_not(schema: str, path: Path, line: str, tmp_path: Path) -> None:
    whole = path.read_text(encoding="utf-8")
    assert line in whole
    broken = tmp_path / path.name
    broken.write_text(whole.replace(line, "", 1), encoding="utf-8")
    done = checked(schema, broken)
    assert done.returncode == 1 and "Schema validation errors were encountered" in done.stdout


# --- CITATION.cff -----------------------------------------------------------------------------------------------------


def test_the_citation_says_what_the_package_says() -> None:
    citation, project = yaml.safe_load(CITATION.read_text(encoding="utf-8")), text("pyproject.toml")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys(), "what CFF 1.2.0 requires"
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["version"] == __version__
    assert f'name = "{citation["title"]}"' in project
    assert f'license = "{citation["license"]}"' in project
    assert f'description = "{citation["abstract"]}"' in project
    assert f'authors = [{{ name = "{citation["authors"][0]["name"]}" }}]' in project


# --- the workflow -----------------------------------------------------------------------------------------------------


def test_only_a_tag_of_a_version_releases(workflow: dict[Any, Any]) -> None:
    assert workflow[True] == {"push": {"tags": ["v*"]}}, "YAML 1.1 reads the key `on` as true"
    assert workflow["concurrency"]["cancel-in-progress"] is False


def test_a_job_may_do_no_more_than_it_needs(workflow: dict[Any, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "build": {"contents": "read"},
        "test": {"contents": "read"},
        "everything": {"contents": "read"},
        "publish": {"id-token": "write"},
    }
    assert jobs["publish"]["environment"] == "pypi"
    assert not any("run" in step for step in jobs["publish"]["steps"]), "who may publish runs no code of ours"
    assert (jobs["test"]["needs"], jobs["publish"]["needs"]) == ("build", ["test", "everything"])


def test_nothing_is_published_before_all_tests_have_passed(workflow: dict[Any, Any]) -> None:
    assert "make test-release" in [step.get("run") for step in workflow["jobs"]["everything"]["steps"]]
    (selected,) = re.findall(r"addopts = \".*-m '([^']*)'\"", text("pyproject.toml"))
    left_out = {f"not {mark}" for mark in ("attack", "release")}
    assert set(selected.split(" and ")) == left_out, "what is no part of `make test`"
    recipe = re.search(r"^test-release:.*\n((?:\t.*\n)+)", text("Makefile"), re.MULTILINE)
    assert recipe is not None
    runs = re.findall(r" -m ('not attack'|attack)[ )]", recipe[1])
    assert runs == ["'not attack'", "attack"], "together they are all tests"


def test_actions_are_pinned_and_nothing_is_pasted_into_a_shell(workflow: dict[Any, Any]) -> None:
    lines = re.findall(r"uses: (\S+)(.*)", RELEASE.read_text(encoding="utf-8"))
    assert len(lines) == len([step for step in steps(workflow) if "uses" in step])
    for action, comment in lines:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action} needs its version as a comment"
    for step in steps(workflow):
        assert "${{" not in step.get("run", "")
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    assert "secrets." not in RELEASE.read_text(encoding="utf-8")


def test_it_tests_what_is_claimed(workflow: dict[Any, Any]) -> None:
    claimed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text("pyproject.toml"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == claimed


def test_what_its_example_imports_is_installed(workflow: dict[Any, Any]) -> None:
    job = workflow["jobs"]["test"]["steps"]
    (example,) = re.findall(r"\$GITHUB_WORKSPACE/(\S+\.py)", job[-1]["run"])
    tree = ast.parse(text(example))
    imported = {
        name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    assert imported - sys.stdlib_module_names == {"jax", "numpy", "otel_goodput"}, "jax brings numpy"
    (install,) = (step["run"] for step in job if "pip install" in step.get("run", ""))
    assert "[jax]" in install
    (checkout,) = (step["with"] for step in job if "checkout" in step.get("uses", ""))
    assert example.startswith(f"{checkout['sparse-checkout']}/")


@pytest.mark.parametrize(
    ("tag", "dated", "status"),
    [(f"v{__version__}", True, 0), (f"v{__version__}", False, 1), (f"v{__version__}1", True, 1), ("v", True, 1)],
)
def test_the_tag_is_held_against_version_and_changelog(
    tag: str, dated: bool, status: int, workflow: dict[Any, Any], tmp_path: Path
) -> None:
    """The step itself, run by the shell that GitHub runs it by."""
    (step,) = (step for step in steps(workflow) if "changelog" in step.get("name", ""))
    (tmp_path / "otel_goodput").mkdir()
    for name in ("otel_goodput/version.py", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path / name)
    date = "2026-01-31" if dated else "unreleased"
    changelog = re.sub(
        rf"(?m)^## \[{re.escape(__version__)}\] - .*$", f"## [{__version__}] - {date}", text("CHANGELOG.md")
    )
    (tmp_path / "CHANGELOG.md").write_text(changelog, encoding="utf-8")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python").symlink_to(sys.executable)
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], cwd=tmp_path,
        env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "GITHUB_REF_NAME": tag},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr


# --- what people do ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["RELEASING.md", "CONTRIBUTING.md", ".github/workflows/test.yml", ".github/workflows/release.yml"]
)
def test_the_targets_of_make_exist(name: str) -> None:
    phony = re.findall(r"^\.PHONY: (.*)$", text("Makefile"), re.MULTILINE)
    targets = {target for line in phony for target in line.split()}
    called = re.findall(r"(?:`|run: |^)make((?: [A-Z]+=\S+)*(?: [a-z][a-z-]*)+)", text(name), re.MULTILINE)
    words = {word for call in called for word in call.split() if "=" not in word}
    assert words and words <= targets


def test_the_files_that_releasing_names_exist() -> None:
    names = re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?|[\w-]+\.(?:py|md|cff|toml))`", text("RELEASING.md"))
    assert len(names) > 8
    places = (ROOT, ROOT / "otel_goodput", WORKFLOWS)
    assert [name for name in names if not any((place / name).exists() for place in places)] == []
