"""The timelines that are drawn in docs/accounting.md, a character a second, as rows that the ledger takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

FENCE = re.compile(r"```timeline\n(.*?)```", re.DOTALL)

KINDS = {
    "init": "accelerator_init",
    "prep": "training_prep",
    "load": "data_loading",
    "save": "checkpoint_save",
    "restore": "checkpoint_restore",
    "custom": "custom",
    "compile": "compile",
    "wait": "elastic_wait",
    "reinit": "elastic_reinit",
    "exclude": "exclusion",
}
# Of the row `account`.
LETTERS = {
    "p": "productive",
    "w": "wasted_progress",
    "z": "stalled",
    "f": "in_flight",
    "o": "other",
    "a": "accelerator_init",
    "t": "training_prep",
    "u": "program_startup",
    "l": "data_loading",
    "s": "checkpoint_save",
    "r": "checkpoint_restore",
    "c": "custom",
    "g": "infrastructure_recovery",
    "d": "elastic_slice_down",
    "e": "elastic_reinitialization",
    "-": "",
}


class Drawing(NamedTuple):
    """Rows for the ledger, and whose each second is, by category; empty: nobody's."""

    rows: list[dict[str, Any]]
    account: list[str]
    text: str


def _runs(line: str) -> Iterator[tuple[str, int, int]]:
    """(character, start, end) of what is alike; a mark belongs to what is before it."""
    at = 0
    for character, same in groupby(line):
        length = len(list(same))
        if character != " ":
            yield character, at, at + length
        at += length


def drawing(text: str) -> Drawing:
    """Rows are a name and characters from column 9 on. In `job` a digit is the attempt, `!` the second in which it is
    killed; in `step` and `device` a digit is the step, `x` the second in which an exception leaves it, `b` a break;
    in `save` and `restore` a digit is the label of the checkpoint."""
    lines = [(line[:9].strip(), line[9:]) for line in text.splitlines() if line.strip()]
    intervals: list[dict[str, Any]] = []
    attempts: list[tuple[int, int]] = []  # start, number
    for name, line in lines:
        if name == "job":
            for character, start, end in _runs(line):
                if character == "!":
                    intervals[-1]["end"] = None
                    intervals.append({"kind": "heartbeat", "start": end, "attempt": attempts[-1][1]})
                    continue
                attempts.append((start, int(character)))
                intervals.append({"kind": "job", "start": start, "end": end, "attempt": int(character)})

    def attempt(start: int) -> int:
        return max(number for begun, number in attempts if begun <= start)

    steps: list[dict[str, Any]] = []
    for name, line in lines:
        if name == "step":
            for character, start, end in _runs(line):
                if character in "xb":
                    steps[-1] |= {"end": end, "completed": False} if character == "x" else {"end": end, "left": True}
                    continue
                if character == "?":  # it is open when the process is killed
                    steps[-1]["end"] = None
                    continue
                row = {"kind": "step", "start": start, "end": end, "step": int(character), "attempt": attempt(start)}
                steps.append(row)
        elif name == "device":
            runs = list(_runs(line))
            for character, _, end in runs:
                next(step for step in steps if step["step"] == int(character) and "device_end" not in step)[
                    "device_end"
                ] = end
        elif name == "profile":
            for _, start, end in _runs(line):
                for moment, state in ((start, "on"), (end, "over")):
                    row = {"kind": "profiling", "start": moment, "state": state, "attempt": attempt(start)}
                    intervals.append(row)
        elif name in KINDS:
            for character, start, end in _runs(line):
                row = {"kind": KINDS[name], "start": start, "end": end, "attempt": attempt(start)}
                if name in ("custom", "wait"):
                    row["name"] = "slice_down" if name == "wait" else "eval"
                if character.isdigit():  # the label of a checkpoint
                    row["step"] = int(character)
                elif name == "save":
                    row["step"] = max((step["step"] for step in steps if step["start"] < start), default=0)
                intervals.append(row)
        elif name not in ("job", "account"):
            raise ValueError(f"a row called {name!r}")
    account = dict(lines)["account"]
    return Drawing([*intervals, *steps], [LETTERS.get(character, "") for character in account], text)


def drawings(document: str) -> list[tuple[str, Drawing]]:
    """(rule, drawing) of each that stands in a section of the document."""
    pairs = []
    for section in re.split(r"(?=^### R\d+ )", document, flags=re.MULTILINE):
        rule = re.match(r"### (R\d+) ", section)
        pairs += [(rule[1] if rule else "", drawing(text)) for text in FENCE.findall(section)]
    return pairs
