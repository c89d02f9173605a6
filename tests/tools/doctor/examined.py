"""Runs the doctor, and reads what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import warm

from ..commands import PATIENCE_S, Answer, environment, goodput


def checked(done: Answer) -> dict[str, Any]:
    """What the doctor answered in JSON. Its verdict, its counts and its exit status agree."""
    answer: dict[str, Any] = json.loads(done.stdout)
    problems, warnings = answer["problems"], answer["warnings"]
    for level, count in (("problem", problems), ("warning", warnings)):
        assert count == sum(one["level"] == level for one in answer["findings"])
    assert done.returncode == (1 if problems else 0)
    line, _, counted = answer["verdict"].partition("; ")
    assert counted == ("" if not warnings else "1 warning" if warnings == 1 else f"{warnings} warnings")
    assert problems or line.startswith(("Ready: ", "Off: "))
    assert not problems or line.startswith("1 problem: " if problems == 1 else f"{problems} problems: ")
    assert all(one["brief"] and len(one["brief"]) < 80 for one in answer["findings"] if one["level"] == "problem")
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
from otel_goodput._tools.cli import main
sys.exit(main(["doctor", "--json"]))
"""


def doctor_without(modules: str, place: Path, **variables: str | Path) -> Answer:
    """The doctor where these modules are not installed."""
    return warm.run(
        [sys.executable, "-W", "error", "-c", WITHOUT, modules],
        capture_output=True, text=True, cwd=place, timeout=PATIENCE_S, check=False,
        env=environment(TMPDIR=place.parent / "tmp", **variables),
    )  # fmt: skip
