"""``docs/collector/``: its commands work, its links lead somewhere, and its tables are those of the configurations."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from otelcol.flat import LAYERS, merged
from tools.commands import goodput, succeeded

from otel_goodput._tools.collector.command import KINDS, TARGETS

from .written import COLLECTOR

DOCS = COLLECTOR.parent / "docs" / "collector"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
OPTIONAL = {"with --spool": "overlays/spool.yaml", "with --tls token": "overlays/{}-token.yaml"}


def commands(text: str) -> list[list[str]]:
    """Every ``otel-goodput collector`` of the page's shell blocks, without where its output goes."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [
        shlex.split(line.partition(" >")[0])[1:] for line in lines if line.startswith("otel-goodput collector")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "command"), [(page, each) for page in sorted(PAGES) for each in commands(PAGES[page])]
)
def test_the_commands_work(page: str, command: list[str]) -> None:
    text = succeeded(goodput(*command))
    if command[1] == "systemd":
        done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert [*yaml.safe_load_all(text)]


def test_every_place_and_kind_has_a_command_on_its_page() -> None:
    for place in TARGETS:
        assert any(command[:3] == ["collector", "config", place] for command in commands(PAGES[f"{place}.md"])), place
    rows = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| .*", PAGES["kubernetes.md"], re.MULTILINE)))
    assert set(KINDS) <= set(rows)


def test_each_page_names_the_roles_of_its_place() -> None:
    for name, target in TARGETS.items():
        (loop,) = re.findall(r"^for role in (.*); do$", PAGES[f"{name}.md"], re.MULTILINE) or [""]
        assert tuple(loop.split()) == target.roles, name


def test_the_download_is_of_the_release_that_is_tested() -> None:
    release = yaml.safe_load((COLLECTOR / "builder" / "manifest.yaml").read_text(encoding="utf-8"))["dist"]["version"]
    downloads = [text for text in PAGES.values() if "## Download" in text]
    assert len(downloads) == len(TARGETS)
    for text in downloads:
        assert f"version={release}\n" in text and "sha256sum --check" in text


def components(config: Any) -> set[str]:
    """Kinds and types of what a configuration uses, as the table has them."""
    return {
        f"{kind.removesuffix('s')} `{name.partition('/')[0]}`"
        for kind in ("receivers", "processors", "connectors", "exporters", "extensions")
        for name in config.get(kind, {})
    }


def test_the_table_of_components_is_that_of_the_configurations() -> None:
    lines = [line.strip("|").split("|") for line in PAGES["index.md"].splitlines() if line.startswith("| ")]
    head = next(line for line in lines if line[0].strip() == "component")
    rows = [[cell.strip() for cell in line] for line in lines[lines.index(head) + 1 :]]
    for at, place in enumerate((cell.strip() for cell in head[1:]), start=1):
        always = {row[0] for row in rows if row[at] == "yes"}
        assert always == components(merged(*LAYERS[place])), place
        for need, overlay in OPTIONAL.items():
            more = {row[0] for row in rows if row[at] == need}
            if more:
                wanted = components(merged(*LAYERS[place], overlay.format(place)))
                assert wanted == always | more, (place, need)


def test_links_lead_somewhere() -> None:
    for page, text in PAGES.items():
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
            name, _, anchor = target.partition("#")
            there = ((DOCS / name) if name else DOCS / page).read_text(encoding="utf-8")
            assert not anchor or anchor in {slug(each) for each in re.findall(r"^#+ (.*)$", there, re.MULTILINE)}, (
                target
            )
    readme = (COLLECTOR / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 120
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", readme):
        assert (COLLECTOR / Path(target)).exists(), target


def slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
