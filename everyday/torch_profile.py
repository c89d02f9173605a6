"""Traces of PyTorch's own profiler that the package takes in the background: all threads, and never the program's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

NAME = "everyday.torch_profile"
PATIENCE_S = 120.0


def check() -> str:
    """Take traces in a process of its own; returns "as they should be", or what is wrong."""
    if importlib.util.find_spec("torch") is None:
        return "not compared: torch is not installed"
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-m", NAME], cwd=root, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.stdout.strip().rpartition("\n")[2] if done.returncode == 0 else f"it failed: {done.stderr[-500:]}"


def _take(folder: Path, end: threading.Event, begun: threading.Event, answers: list[Any]) -> None:
    from otel_goodput._incidents import traces

    folder.mkdir()
    try:
        trace = traces.begin("torch", folder)
    except traces.Unavailable as error:
        answers.append(str(error))
        begun.set()
        return
    begun.set()
    while not (end.wait(0.01) or trace.disturbed):
        pass
    answers.append(trace.stop())


class _Taken:
    """A trace that a thread takes."""

    def __init__(self, folder: Path) -> None:
        self._end, begun = threading.Event(), threading.Event()
        self._answers: list[Any] = []
        self._thread = threading.Thread(target=_take, args=(folder, self._end, begun, self._answers))
        self._thread.start()
        begun.wait(PATIENCE_S)

    def end(self) -> Any:
        self._end.set()
        self._thread.join(PATIENCE_S)
        return self._answers[0]


def main(place: Path) -> str:
    """Return "as they should be", or what is wrong with the traces."""
    import torch

    from otel_goodput._incidents.traces import FILE

    def work() -> Any:
        value = torch.arange(10000.0).reshape(100, 100) / 10000
        for _ in range(20):
            value = torch.tanh(value @ value)
        return value

    expected = work()
    taken = _Taken(place / "ours")
    same = torch.equal(work(), expected)
    if taken.end() is not True or not same:
        return f"wrong: ours was not taken, or the result is another one ({same})"
    events = json.loads((place / "ours" / FILE).read_text(encoding="utf-8"))["traceEvents"]
    if sum(event.get("name") == "aten::mm" for event in events) < 20:
        return "wrong: what the training thread did is not in the trace"
    taken = _Taken(place / "second")
    with torch.profiler.profile() as profile:
        work()
        third = _Taken(place / "third").end()
    names = [event.name for event in profile.events()]
    if names.count("aten::mm") != 20 or taken.end() is not False or "takes a trace" not in third:
        return f"wrong: the program's trace was disturbed, or ours was not ({names.count('aten::mm')}, {third})"
    return "as they should be" if _Taken(place / "fourth").end() is True else "wrong: none can be taken any more"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(main(Path(place)))
