"""Runs the doctor, and reads what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ..commands import PATIENCE_S, Answer, environment, goodput


def findings(done: Answer, about: str, level: str) -> str:
    """The findings of this kind, one a line."""
    answer = json.loads(done.stdout)
    assert done.returncode == (1 if answer["problems"] else 0)
    assert done.stderr == ""
    return "\n".join(
        f"{one['what']} -> {one['do']}" for one in answer["findings"] if one["about"] == about and one["level"] == level
    )


def doctor(place: Path, *arguments: str, **variables: str | Path) -> Answer:
    """`otel-goodput doctor --json` in `place`."""
    return goodput(
        "doctor", "--json", "--timeout", "5", *arguments, cwd=place, TMPDIR=place.parent / "tmp", **variables
    )


WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from otel_goodput.tools.cli import main
sys.exit(main(["doctor", "--json"]))
"""


def doctor_without(modules: str, place: Path, **variables: str | Path) -> Answer:
    """The doctor where these modules are not installed."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT, modules],
        capture_output=True, text=True, cwd=place, timeout=PATIENCE_S, check=False,
        env=environment(TMPDIR=place.parent / "tmp", **variables),
    )  # fmt: skip
