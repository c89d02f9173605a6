"""The page as one HTML text that needs no other file: its modules joined, its styles and its document inside.

The modules are joined in the order of their imports, in one scope, so their top-level names are unique (a test checks).
"""

from __future__ import annotations

import base64
import gzip
import html as markup
import json
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from hashlib import sha256
from typing import Final

from otel_goodput._runtime import files
from otel_goodput._text.durations import Moment
from otel_goodput._viewer.document import Redaction, document
from otel_goodput.reports import SPANS, ProgressCallback, no_progress
from otel_goodput.reports.comparison import Comparison
from otel_goodput.reports.report import Report
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.run_view import RunView

ASSETS: Final = ("otel_goodput._viewer", "assets")
UPLOT: Final = "uplot-1.6.32"  # charts; MIT, its licence beside it
_FIRST: Final = "page.css"
_LAST: Final = "main.js"  # starts what the other modules define
_IMPORT: Final = re.compile(r"^import\b[^;]*;[ \t]*(?:\n|$)", re.MULTILINE)
_FROM: Final = re.compile(r"""["']\./([\w-]+\.js)["']""")
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_LEVEL: Final = 9  # of gzip
_SERVED: Final = 6  # and of a page that somebody waits for
_KEPT: Final = 64  # served pages, 100 KB each


def html(data: bytes | None, *, source: str | None = None, comparison: Comparison | None = None) -> str:
    """Return the page.

    Args:
        data: the document that it shows (see ``_viewer/document.py``); it is put into the page.
        source: without a document, the address on the page's own server that it is fetched from.
        comparison: two runs that it shows side by side instead. Without all three, the page is that of a list of runs.
    """
    holder = ""
    if data is not None:
        packed = base64.b64encode(gzip.compress(data, _LEVEL, mtime=0)).decode("ascii")
        holder = f'<script type="application/octet-stream" id="document">{packed}</script>'
    elif source is not None:
        address = markup.escape(source)
        holder = f'<script type="application/octet-stream" id="document" data-source="{address}"></script>'
    elif comparison is not None:
        text = json.dumps(Redaction().all(comparison.to_json())).replace("<", "\\u003c")  # nothing ends the element
        holder = f'<script type="application/json" id="comparison">{text}</script>'
    allowed = markup.escape(policy(served=data is None and comparison is None))
    text = _frame()[0].replace("<!-- policy -->", f'<meta http-equiv="Content-Security-Policy" content="{allowed}">', 1)
    return text.replace("<!-- document -->", holder, 1)


@lru_cache(_KEPT)
def packed(source: str | None) -> bytes:
    """Return a served page (see :func:`html`), gzipped; those requested last are kept."""
    return gzip.compress(html(None, source=source).encode(), _SERVED, mtime=0)


def of_run(
    run: RecordedRun,
    *,
    report: Report | None = None,
    spans: int = SPANS,
    progress: ProgressCallback = no_progress,
    at: int | Moment | None = None,
) -> str:
    """Return the page of a run; for the arguments see :meth:`~otel_goodput.reports.run_view.RunView.open`."""
    return html(document(RunView.open(run, report=report, spans=spans, progress=progress, at=at)))


def policy(*, served: bool) -> str:
    """Return the Content-Security-Policy of the page: only its own scripts and styles, and no address but its own."""
    _, scripts, styles = _frame()
    connect = "'self'" if served else "'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


@cache
def served_policy() -> str:
    """Return the policy of served pages, with what only a header can say."""
    return f"{policy(served=True)}; frame-ancestors 'none'"


@cache
def _frame() -> tuple[str, str, str]:
    """Return the page without a document and a policy, and the hashes of what it runs and styles itself with."""
    vendored = (*ASSETS, "vendor", UPLOT)
    names = files.resources(*ASSETS)
    styles = [files.resource(*vendored, "uPlot.min.css")]
    sheets = sorted((name for name in names if name.endswith(".css")), key=lambda name: (name != _FIRST, name))
    styles.append("\n".join(files.resource(*ASSETS, name) for name in sheets))
    charts, modules = files.resource(*vendored, "uPlot.iife.min.js"), scripts()
    text = files.resource(*ASSETS, "page.html")
    text = text.replace("<!-- styles -->", "\n".join(f"<style>{style}</style>" for style in styles), 1)
    # As text of a page, a carriage return would become a line feed and the hash another one.
    running = f'<script>{charts}</script>\n<script type="module">{modules}</script>'
    return text.replace("<!-- scripts -->", running, 1), _hashes((charts, modules)), _hashes(styles)


def _hashes(texts: Iterable[str]) -> str:
    hashes = (base64.b64encode(sha256(text.encode()).digest()).decode("ascii") for text in texts)
    return " ".join(f"'sha256-{one}'" for one in hashes)


def scripts() -> str:
    """Return all modules of the page as one: in the order of their imports, without ``import`` and ``export``.

    Raises:
        ValueError: modules import each other in a circle, or one that is not there.
    """
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in modules().values())


def modules() -> dict[str, str]:
    """Return the page's modules by name, each behind those that it imports. Raises as :func:`scripts`."""
    texts = {name: files.resource(*ASSETS, name) for name in files.resources(*ASSETS) if name.endswith(".js")}
    ordered: dict[str, str] = {}
    following: list[str] = []

    def follow(name: str) -> None:
        if name in following:
            raise ValueError(f"modules import each other: {' -> '.join((*following, name))}")
        if name in ordered:
            return
        if name not in texts:
            raise ValueError(f"{following[-1]} imports {name}, which is not there")
        following.append(name)
        for statement in _IMPORT.findall(texts[name]):
            for other in _FROM.findall(statement):
                follow(other)
        following.pop()
        ordered[name] = texts[name]

    for name in sorted(texts, key=lambda name: (name == _LAST, name)):
        follow(name)
    return ordered
