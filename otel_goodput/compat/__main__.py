"""Runs a program with the drop-in installed: ``python -m otel_goodput.compat -m package.module …``, or a script."""

from __future__ import annotations

import runpy
import sys
from typing import Final

from otel_goodput.compat import install

USAGE: Final = """\
usage: python -m otel_goodput.compat [-m MODULE | FILE] [ARGUMENT …]

Runs a program that imports ml_goodput_measurement; otel_goodput records its goodput instead. Nothing in the program
changes. Its arguments follow the module or the file.
"""


def main(arguments: list[str]) -> int:
    """Run what `arguments` say; returns the exit status of a wrong call."""
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return 0
    as_module = arguments[:1] == ["-m"]
    program = arguments[as_module:]
    if not program or program[0].startswith("-"):
        sys.stderr.write(USAGE)
        return 2
    install()
    sys.argv = program
    sys.path[0] = ""  # where Python itself looks with -m
    if as_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
