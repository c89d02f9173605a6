"""Runs the doctor, and reads what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..commands import PATIENCE_S, Answer, environment, goodput


def checked(done: Answer) -> dict[str, Any]:
    """What the doctor answered in JSON. Its verdict, its lists and its exit status agree."""
    answer: dict[str, Any] = json.loads(done.stdout)
    for level in ("problem", "warning"):
        assert answer[f"{level}s"] == [one for one in answer["findings"] if one["level"] == level]
    problems, warnings = len(answer["problems"]), len(answer["warnings"])
    assert done.returncode == (1 if problems else 0)
    line, _, count = answer["verdict"].partition("; ")
    assert count == ("" if not warnings else "1 warning" if warnings == 1 else f"{warnings} warnings")
    assert problems or line.startswith(("Ready: ", "Off: "))
    assert not problems or line.startswith("1 problem: " if problems == 1 else f"{problems} problems: ")
    assert all(one["brief"] and len(one["brief"]) < 80 for one in answer["problems"])
    return answer


def findings(done: Answer, about: str, level: str) -> str:
    """The findings of this kind, one a line."""
    answer = checked(done)
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
