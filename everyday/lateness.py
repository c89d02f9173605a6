"""Measures how late this machine wakes a sleeping thread: no clock, ours or a witness's, can be more exact."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType

# In a process of its own: what keeps this interpreter busy must not count.
NAPS = """
import json, sys, threading, time
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
late = []
print("napping", flush=True)
while not (late and over.is_set()):
    began = time.perf_counter_ns()
    time.sleep(0.005)
    late.append(time.perf_counter_ns() - began - 5_000_000)
usual = sorted(late)[len(late) // 4]
late = [max(0, each - usual) for each in late]
print(json.dumps([sum(late) / len(late), max(late)]))
"""


class Lateness:
    """Measures during a ``with`` block, by a process that naps for 5 ms at a time.

    Attributes:
        mean: ns that a nap took longer than undisturbed ones.
        worst: the same of the longest nap.
        seen: a delay in ns that the caller has measured elsewhere.
    """

    mean = worst = 0.0
    seen = 0

    def __repr__(self) -> str:
        woken = f"woken {self.mean / 1e6:.3f} ms late in the mean, {self.worst / 1e6:.3f} ms at worst"
        return f"{woken}; {self.seen / 1e6:.3f} ms seen"

    def __enter__(self) -> Lateness:
        self._naps = subprocess.Popen([sys.executable, "-c", NAPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._naps.stdout is not None
        self._naps.stdout.readline()  # so that all of the block is measured
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        printed, _ = self._naps.communicate(timeout=60)
        self.mean, self.worst = json.loads(printed)

    def of(self, wakes: int) -> float:
        """The error in ns of a measurement that was woken `wakes` times, once as late as the latest nap."""
        return wakes * self.mean + self.worst

    def agree(self, ours: float, theirs: float, within: float, wakes: int) -> bool:
        """Whether two times (ns) are equal but for the share `within` and the error of `wakes` wake-ups."""
        return abs(ours - theirs) <= within * theirs + self.of(wakes) + self.seen
