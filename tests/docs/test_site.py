"""The documentation builds as a site without a warning: all pages are in its navigation, links and anchors exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 30
    for page in pages:
        made = site / page.parent / "index.html" if page.name == "index" else site / page / "index.html"
        assert made.exists(), page


def test_it_asks_nobody_else_for_anything(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img)[^>]*\b(?:src|href)=\"?(https?:[^\" >]+)", page.read_text(encoding="utf-8")
        )
        assert loaded == [], page


def test_no_markdown_is_left(site: Path) -> None:
    """A fence, a table or a list that the site's renderer does not take for one is shown as it is written."""
    left = []
    for page in sorted(site.rglob("index.html")):
        body = page.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
        code = re.findall(r"<code>(.*?)</code>", body, re.DOTALL)
        text = re.sub(r"<code>.*?</code>|<pre.*?</pre>|<[^>]+>", "", body, flags=re.DOTALL)
        marks = re.findall(r"```|\*\*|\]\(|^ *\| .*", text, re.MULTILINE)
        marks += [one for one in code if "\\|" in one or re.search(r"&amp;(?:lt|gt|amp);", one)]
        left += [(page.relative_to(site).as_posix(), one) for one in marks]
    assert left == []
