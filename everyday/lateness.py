"""How late this machine wakes whoever sleeps: what no clock, ours or a witness's, can be better than."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType

# A process of its own: what keeps an interpreter busy is no fault of the machine.
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
    """Measured while it is entered, by a process that naps for 5 ms at a time.

    Attributes:
        mean: ns that a nap took longer than naps that nothing delays.
        worst: of the one that took longest.
        seen: ns by which somebody else is known to have come late.
    """

    mean = worst = 0.0
    seen = 0

    def __repr__(self) -> str:
        woken = f"woken {self.mean / 1e6:.3f} ms late in the mean, {self.worst / 1e6:.3f} ms at worst"
        return f"{woken}; {self.seen / 1e6:.3f} ms seen"

    def __enter__(self) -> Lateness:
        self._naps = subprocess.Popen([sys.executable, "-c", NAPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._naps.stdout is not None
        self._naps.stdout.readline()  # whoever is measured is measured all the time
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        told, _ = self._naps.communicate(timeout=60)
        self.mean, self.worst = json.loads(told)

    def of(self, wakes: int) -> float:
        """ns by which who was woken so many times may be wrong: one of them was as late as the latest nap."""
        return wakes * self.mean + self.worst

    def agree(self, ours: float, theirs: float, within: float, wakes: int) -> bool:
        """Whether two times (ns) are equal but for the share `within` and what those are late who were woken for it."""
        return abs(ours - theirs) <= within * theirs + self.of(wakes) + self.seen
