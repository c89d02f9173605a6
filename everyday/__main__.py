"""Runs the programs and says what is wrong with their figures."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from everyday.catalogue import PROGRAMS
from everyday.trial import perform


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="which (default: all)")
    options = parser.parse_args()
    status = 0
    for name in options.names or PROGRAMS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            try:
                results = perform(PROGRAMS[name], Path(place))
            except RuntimeError as error:
                print(f"{name}: {error}")
                status = 1
                continue
        for result in results:
            wrong = result.wrong()
            said = "null" if result.report["goodput"] is None else f"{result.report['goodput']:.3f}"
            print(f"{name:32} {said} (truth {result.truth.goodput:.3f})  {time.monotonic() - began:.1f} s", flush=True)
            for one in wrong:
                print("    " + one)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
