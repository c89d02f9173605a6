"""``otel-goodput export``: a run as a file for other viewers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from otel_goodput._runtime import files
from otel_goodput._text.quantities import plural
from otel_goodput._text.redact import shown
from otel_goodput._timeline.damage import Damages
from otel_goodput._tools.arguments import add_directory, add_run, named_runs, only
from otel_goodput._tools.commands import DAMAGED
from otel_goodput._tools.waiting import ProgressLine
from otel_goodput.reports import perfetto


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser, "folder of a run, or folder or URL of all runs")
    add_run(parser)
    parser.epilog = (
        "Open the file at ui.perfetto.dev or in chrome://tracing. A name that ends with .gz is compressed; both read "
        "that too."
    )
    words = "write the trace to FILE (- for standard output)"
    parser.add_argument("--perfetto", required=True, metavar="FILE", help=words)
    words = "only this process; may be repeated (default: all with a journal)"
    parser.add_argument("--process", type=int, action="append", metavar="K", help=words)


def run_export(options: argparse.Namespace) -> int:
    """Export a run and return 0, or 3 if a part of its journal cannot be read."""
    damages = Damages()
    with named_runs(options) as runs:
        run = only(runs)
        processes = sorted(set(options.process)) if options.process else run.folder.processes() or [0]
        with ProgressLine() as progress, _target(options.perfetto) as write:
            written = perfetto.export(run, processes, write, progress=progress, damages=damages)
    if options.perfetto != "-":
        print(f"{shown(options.perfetto)}: {plural(written, 'event')}; open it at ui.perfetto.dev")
    if (note := damages.note()) is not None:
        print(f"otel-goodput: {shown(note.text)}", file=sys.stderr)
        return DAMAGED
    return 0


@contextmanager
def _target(name: str) -> Iterator[Callable[[bytes], object]]:
    """Yield what writes; if it fails, no partial file is left."""
    if name == "-":
        yield sys.stdout.buffer.write
        return
    with files.writing_named(files.named(name)) as stream:
        if not name.endswith(".gz"):
            yield stream.write
            return
        with files.packed(stream) as packed:
            yield packed.write
