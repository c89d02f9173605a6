"""``otel-goodput report --html``: writes a run as a page."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from otel_goodput import files
from otel_goodput.errors import ConfigurationError
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.session import SPANS, Session
from otel_goodput.text.redact import shown
from otel_goodput.tools.progress import ProgressLine
from otel_goodput.tools.statuses import DAMAGED
from otel_goodput.viewer.document import document
from otel_goodput.viewer.page import html

_MB: Final = 1e6


def write(run: RecordedRun, options: argparse.Namespace) -> int:
    """Write the page of a run to ``options.html``; prints where it is. Returns the exit status.

    Raises:
        ConfigurationError: the file is a directory, or an option does not go with a page.
        OSError: the file cannot be written.
    """
    for name in ("window", "exclude", "ideal_step_time", "json"):
        if getattr(options, name):
            raise ConfigurationError(
                f"--html always shows the whole run: it cannot be combined with --{name.replace('_', '-')}"
            )
    if options.process:
        raise ConfigurationError("--html always shows all processes: it cannot be combined with --process")
    to_stdout = options.html == "-"
    place = files.named(options.html)
    if not to_stdout and files.is_folder(place):
        raise ConfigurationError(f"{options.html} is a directory: name a file, such as {options.html}/report.html")
    spans = SPANS if options.spans is None else options.spans
    with ProgressLine() as progress:
        session = Session.open(run, spans=spans, progress=progress, at=options.at)
        progress(0, 0, "writing the page")
        page = html(document(session)).encode()
    if to_stdout:
        sys.stdout.flush()
        sys.stdout.buffer.write(page)
        sys.stdout.buffer.flush()
    else:
        files.write_for_owner(place, page)
        print(f"{shown(str(place))}: {len(page) / _MB:.1f} MB")
    return DAMAGED if session.report.damaged else 0
