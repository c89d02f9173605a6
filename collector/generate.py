"""Writes the dashboards and alerts beside this file, and the page about the alerts: ``python collector/generate.py``.

``--check`` compares only. For thresholds of your own there is ``otel-goodput dashboards``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from otel_goodput.dashboards import rulefiles
from otel_goodput.dashboards.thresholds import Thresholds, windows
from otel_goodput.dashboards.written import PLACES, Choices, files_for

HERE = Path(__file__).resolve().parent
PAGE = "../docs/collector/alerts.md"
BEGIN, END = "<!-- begin: alerts -->\n", "<!-- end: alerts -->\n"
WRITTEN = ("dashboards/*.json", "alerts/**/*")


def explained(text: str, alerts: str) -> str:
    """The page about the alerts with its generated part as it is to be.

    Raises:
        ValueError: the markers of that part are missing, or there more than once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{PAGE} needs the markers of the alerts once each")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{alerts}\n{END}{rest.partition(END)[2]}"


def different(directory: Path, contents: Mapping[str, str]) -> list[str]:
    """Paths whose files are not what they are to be, and of files that nothing here writes."""
    found = {
        str(path.relative_to(directory)) for pattern in WRITTEN for path in directory.glob(pattern) if path.is_file()
    }
    stale = [path for path, text in contents.items() if _read(directory / path) != text]
    return sorted(stale + list(found - set(contents)))


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if a file is out of date")
    given = parser.parse_args()
    chosen = Choices(windows(), Thresholds())
    contents = {path: text for place in PLACES for path, text in files_for(place, chosen).items()}
    contents[PAGE] = explained(_read(HERE / PAGE) or "", rulefiles.markdown(chosen.rules))
    stale = different(HERE, contents)
    if given.check:
        for path in stale:
            sys.stderr.write(f"{path} is not what the tables say; run python collector/generate.py\n")
        return 1 if stale else 0
    for path in stale:
        target = HERE / path
        if path not in contents:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(contents[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
