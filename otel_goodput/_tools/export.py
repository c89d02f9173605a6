"""``otel-goodput export``: a run as a file for other viewers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from otel_goodput._tools.arguments import add_run, found_in
from otel_goodput._tools.manual import DAMAGED

if TYPE_CHECKING:
    from otel_goodput.reports.run import RecordedRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to `parser`; the run is named as for ``report``."""
    add_run(parser, process=False)
    parser.epilog = (
        "Open the file at ui.perfetto.dev or in chrome://tracing. A name that ends with .gz is compressed; both read "
        "that too."
    )
    parser.add_argument(
        "--perfetto", required=True, metavar="FILE", help="write the trace to FILE (- for standard output)"
    )
    parser.add_argument(
        "--process",
        type=int,
        action="append",
        default=None,
        metavar="K",
        help="only this process; may be repeated (default: all with a journal)",
    )


def run(options: argparse.Namespace) -> int:
    """Export a run and return 0, or 3 if a part of its journal cannot be read.

    Raises:
        JournalError: there is no such run, there are several, or it left no journal.
        OSError: the file cannot be written.
    """
    from otel_goodput.errors import JournalError

    with found_in(options) as found:
        if len(found) > 1:
            ids = ", ".join(one.run_id for one in found)
            raise JournalError(f"there are {len(found)} runs; choose one with --run: {ids}")
        return _export(options, found[0])


def _export(options: argparse.Namespace, chosen: RecordedRun) -> int:
    from otel_goodput._text.quantities import plural
    from otel_goodput._text.redact import shown
    from otel_goodput._timeline.damage import Damages
    from otel_goodput._tools.progress import ProgressLine
    from otel_goodput.reports import perfetto

    processes = sorted(set(options.process)) if options.process else chosen.folder.processes() or [0]
    damages = Damages()
    with ProgressLine() as progress, _target(options.perfetto) as (write, scratch):
        written = perfetto.export(
            chosen,
            processes,
            write,
            scratch=scratch,
            progress=progress,
            damages=damages,
        )
    if options.perfetto != "-":
        print(f"{shown(options.perfetto)}: {plural(written, 'event')}; open it at ui.perfetto.dev")
    if (note := damages.note()) is not None:
        print(f"otel-goodput: {shown(note.text)}", file=sys.stderr)
        return DAMAGED
    return 0


@contextmanager
def _target(name: str) -> Iterator[tuple[Callable[[bytes], object], Path]]:
    """Yield what writes, and a folder for temporary files; if it fails, no partial file is left."""
    from otel_goodput._runtime import files

    if name == "-":
        yield sys.stdout.buffer.write, files.temporary()
        return
    path = files.named(name)
    with files.writing_named(path) as stream:
        scratch = path.parent if path.is_file() or not path.exists() else files.temporary()
        if not name.endswith(".gz"):
            yield stream.write, scratch
            return
        with files.packed(stream) as packed:
            yield packed.write, scratch
