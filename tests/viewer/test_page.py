"""The page: one file that asks nobody for anything, its parts joined as they were checked in."""

from __future__ import annotations

import base64
import gzip
import re
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

import otel_goodput._viewer
from otel_goodput._viewer import page
from otel_goodput._viewer.document import Columns

ASSETS = Path(otel_goodput._viewer.__file__).parent / "assets"
VENDOR = ASSETS / "vendor" / page.UPLOT
# uplot 1.6.32 as npm has it.
CHECKSUMS = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
_TOP = re.compile(r"^(?:export )?(?:async )?(?:function\*?|class|const|let|var) +(?:\{([^}]*)\}|(\w+))", re.MULTILINE)


def elements(text: str, name: str) -> list[tuple[str, str]]:
    """Attributes and content of all elements of a name."""
    return re.findall(rf"<{name}([^>]*)>(.*?)</{name}>", text, re.DOTALL)


def policy(text: str) -> dict[str, list[str]]:
    [content] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    directives = content.replace("&#x27;", "'").split(";")
    return {words[0]: words[1:] for one in directives if (words := one.split())}


@pytest.fixture(scope="module")
def text() -> str:
    return page.html(Columns().container({"format": 1}))


def test_the_document_comes_back(text: str) -> None:
    [packed] = [content for attributes, content in elements(text, "script") if 'id="document"' in attributes]
    assert gzip.decompress(base64.b64decode(packed)) == Columns().container({"format": 1})


def test_only_what_is_in_the_page_runs_and_nothing_is_fetched(text: str) -> None:
    allowed = policy(text)
    assert allowed["default-src"] == allowed["connect-src"] == ["'none'"]
    for name, directive in (("script", "script-src"), ("style", "style-src")):
        run = [content for attributes, content in elements(text, name) if "octet-stream" not in attributes]
        hashes = [f"'sha256-{base64.b64encode(sha256(one.encode()).digest()).decode()}'" for one in run]
        assert sorted(allowed[directive]) == sorted(hashes)
    assert not [word for words in allowed.values() for word in words if "unsafe" in word or word == "*"]
    assert allowed["img-src"] == ["data:"]
    assert not re.findall(r"\son\w+=", re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL))
    assert "\r" not in text


def test_a_served_page_asks_its_own_server_only() -> None:
    text = page.html(None, source='/runs/"a"&b/document')
    assert policy(text)["connect-src"] == ["'self'"]
    assert 'data-source="/runs/&quot;a&quot;&amp;b/document"' in text
    assert 'id="document"' not in page.html(None)


def test_every_placeholder_is_filled(text: str) -> None:
    assert not re.findall(r"<!-- \w+ -->", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("path", sorted(ASSETS.rglob("*.js")), ids=lambda path: path.name)
def test_nothing_ends_the_script_early(path: Path) -> None:
    content = path.read_text(encoding="utf-8")
    assert "</script" not in content.lower() and "<!--" not in content


def test_names_are_unique_over_all_modules() -> None:
    names: Counter[str] = Counter()
    for source in page.modules().values():
        names.update({name for _, name in _TOP.findall(source) if name})
    assert not [name for name, count in names.items() if count > 1]


def test_modules_stand_behind_those_they_import() -> None:
    seen: set[str] = set()
    for name, source in page.modules().items():
        assert set(re.findall(r"""from ["']\./([\w-]+\.js)""", source)) <= seen, name
        seen.add(name)
    assert list(page.modules())[-1] == "main.js"
    assert not re.findall(r"^(?:import|export)\b", page.scripts(), re.MULTILINE)


@pytest.mark.parametrize("name", CHECKSUMS)
def test_what_others_wrote_is_what_they_wrote(name: str) -> None:
    assert sha256((VENDOR / name).read_bytes()).hexdigest() == CHECKSUMS[name]
    assert "MIT" in (VENDOR / "LICENSE").read_text(encoding="utf-8")
