"""What libtpu says of the TPUs with which jax computes in this process, through its own ``tpumonitoring``.

A call of that holds the interpreter's lock until it is over, which can take minutes if a metadata server does not
answer. So a process of its own makes the calls. It takes nothing of a TPU, and ends with this process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import util
from typing import Any, Final

from otel_goodput._integrations import flops
from otel_goodput._integrations.accelerators import Reading
from otel_goodput._journal.usage_now import UNKNOWN
from otel_goodput.semconv import THROTTLE_REASONS, Accelerator, ThrottleReason

_BUSY, _MEMORY, _LIMIT, _THROTTLED = "duty_cycle_pct", "hbm_capacity_usage", "hbm_capacity_total", "tpu_throttle_score"
_NAMES: Final = (_BUSY, _MEMORY, _LIMIT, _THROTTLED)
# Answers each line with one, until there are no more.
_CHILD: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from libtpu.sdk import tpumonitoring
for line in sys.stdin:
    answer = {}
    for name in line.split():
        try:
            answer[name] = [str(one) for one in tpumonitoring.get_metric(name).data()]
        except Exception:
            answer[name] = []
    print(json.dumps(answer), flush=True)
"""
_LONGEST: Final = 1 << 16  # characters of an answer


class Libtpu:
    """Reads what libtpu says. Its methods may wait, and raise."""

    kind: Final = Accelerator.TPU

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._gone = False  # libtpu is not there, or has no such part

    def read(self) -> Reading | None:
        """Return what is known of the TPUs together; None if this process computes with none."""
        if self._gone or not _in_use():
            return None
        if self._child is None:
            self._gone = util.find_spec("libtpu") is None
            if self._gone:
                return None
            self._child = _begin()
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write(f"{' '.join(_NAMES)}\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline(_LONGEST)
        except OSError:
            answer = ""
        if not answer:
            self._gone = True
            self.close()
            return None
        return _reading(json.loads(answer))

    def stop(self) -> None:
        """End the process; what is reading from it sees that."""
        if self._child is not None:
            self._child.kill()

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()


def _in_use() -> bool:
    if "jax" not in sys.modules or not flops.backend_started():
        return False
    return any(getattr(device, "platform", "") == Accelerator.TPU for device in sys.modules["jax"].local_devices())


def _begin() -> subprocess.Popen[str]:
    # Without the user's start-up files: what they do, such as recording this process, is not for this one.
    command = [sys.executable, "-I", "-S", "-c", _CHILD, json.dumps(sys.path)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, text=True, start_new_session=True)


def _reading(answer: Any) -> Reading | None:
    if not isinstance(answer, Mapping):
        return None
    busy, memory, limit = (_numbers(answer.get(name)) for name in (_BUSY, _MEMORY, _LIMIT))
    scores = _numbers(answer.get(_THROTTLED), after="-")  # "0-3": device 0, by 30 %
    if not (busy or memory or scores):
        return None  # nothing runs on them yet
    devices = max(len(busy), len(memory), len(limit))
    known = bool(memory) and len(memory) == len(limit)
    return Reading(
        kind=Accelerator.TPU,
        devices=max(devices, len(scores)),
        busy=min(1.0, sum(busy) / len(busy) / 100) if busy else UNKNOWN,
        memory=round(sum(memory)) if known else UNKNOWN,
        memory_limit=round(sum(limit)) if known else UNKNOWN,
        power=UNKNOWN,
        energy=UNKNOWN,
        throttled=(any(scores) << THROTTLE_REASONS.index(ThrottleReason.UNKNOWN)) if scores else UNKNOWN,
        held_down=sum(score > 0 for score in scores) / len(scores) if scores else 0.0,
    )


def _numbers(texts: object, after: str = "") -> Sequence[float]:
    """Return the numbers in a list of texts, or in what is `after` a mark in each; none if one is none, or negative."""
    if not isinstance(texts, list):
        return ()
    try:
        numbers = [float(str(text).rpartition(after)[2] if after else text) for text in texts]
    except ValueError:
        return ()
    return numbers if all(0 <= number < 1 << 62 for number in numbers) else ()
