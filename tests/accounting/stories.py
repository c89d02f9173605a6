"""Timelines written the way a person tells them.

    job 0-92
    init 0-10 / prep 10-30 / load 30-32
    steps 0..19 @32 every 3          # one after the other, each 3 s long
    step 20 @92-                     # never ended
    attempt 2
    job 107-169

One event a line, or several with `/` between; `#` starts a remark. An event is a word, what it is about (a step number,
a name) where it has such a thing, a span of seconds and options:

    A-B  A-  A          from A to B; never ended; at A
    steps 3..5 @32 every 3 for 2     three steps 3 s apart, 2 s long
    device 45           an observed step's end on the device
    async, sync         not blocking, blocking
    process 1           of another process
    slices 3/4/4 @62    active / available / total
"""

from __future__ import annotations

import re
from typing import Any

WORDS = {
    "init": "accelerator_init",
    "prep": "training_prep",
    "load": "data_loading",
    "save": "checkpoint_save",
    "restore": "checkpoint_restore",
    "wait": "elastic_wait",
    "reinit": "elastic_reinit",
    "exclude": "exclusion",
}
NUMBER = r"\d+(?:\.\d+)?"
STEPS = re.compile(rf"steps (\d+)\.\.(\d+) @({NUMBER}) every ({NUMBER})(?: for ({NUMBER}))?")
EVENT = re.compile(
    rf"(?P<word>\w+)(?: (?P<about>[\w/]+(?= @?{NUMBER})))?"
    rf" @?(?P<start>{NUMBER})(?P<dash>-(?P<end>{NUMBER})?)?"
    rf"(?P<options>( async| sync| device {NUMBER}| process \d+)*)"
)


def story(text: str) -> list[dict[str, Any]]:
    """The rows that the text tells of, in the neutral form, in seconds."""
    rows: list[dict[str, Any]] = []
    attempt = 1
    for line in text.splitlines():
        for sentence in line.partition("#")[0].split(" / "):
            sentence = sentence.strip()
            if not sentence:
                continue
            if sentence.startswith("attempt "):
                attempt = int(sentence.removeprefix("attempt "))
            elif (steps := STEPS.fullmatch(sentence)) is not None:
                first, last, start, period, length = (float(part) if part else None for part in steps.groups())
                assert first is not None and last is not None and start is not None and period is not None
                for index in range(int(last - first) + 1):
                    begin = start + index * period
                    rows.append(
                        {
                            "kind": "step",
                            "start": begin,
                            "end": begin + (length or period),
                            "step": int(first) + index,
                            "attempt": attempt,
                        }
                    )
            else:
                rows.append({**read_event(sentence), "attempt": attempt})
    return rows


def read_event(sentence: str) -> dict[str, Any]:
    match = EVENT.fullmatch(sentence)
    if match is None:
        raise ValueError(f"cannot read {sentence!r}")
    word, about, options = match["word"], match["about"], match["options"]
    start = float(match["start"])
    end = start if match["dash"] is None else float(match["end"]) if match["end"] else None
    row: dict[str, Any] = {"kind": WORDS.get(word, word), "start": start, "end": end}
    if word == "slices":
        row["kind"] = "slice_counts"
        row["active"], row["available"], row["total"] = map(int, about.split("/"))
    elif about is not None and about.isdigit():
        row["step"] = int(about)
    elif about is not None:
        row["name"] = about
    if "sync" in options:
        row["blocking"] = "async" not in options
    for key, value in re.findall(r"(device|process) ([\d.]+)", options):
        row.update({"device_end": float(value)} if key == "device" else {"process": int(value)})
    return row
