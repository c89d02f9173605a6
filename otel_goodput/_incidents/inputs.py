"""Whether batches were ready: how many a loader has, looked at now and then from the keeper's thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from otel_goodput._incidents.evidence import Circumstance
from otel_goodput._runtime.guard import containing
from otel_goodput._text.durations import NS
from otel_goodput.semconv import Category

KEPT: Final = 1200  # looks, five minutes at the keeper's pace
LEAST: Final = 8  # looks that tell something
SETTLED_NS: Final = 120 * NS  # after an incident was noticed, what is said of the queue stays as it is
SHARE: Final = 100  # a look may take so small a part of the time, since it may call a function of the user's
FEW: Final = 0.1  # of the looks: then it is not that batches come too late


class InputQueue:
    """The latest looks at how many batches are ready.

    Args:
        ready: returns how many there are, None if no loader tells.
        clock: ns since the epoch.
    """

    def __init__(self, ready: Callable[[], int | None], clock: Callable[[], int]) -> None:
        self._ready, self._clock = ready, clock
        self._looks = deque[tuple[int, bool]](maxlen=KEPT)  # when, ns, and whether there was none
        self._due = 0.0  # s, monotonic
        self._settled: tuple[Circumstance, list[str]] | None = None

    def look(self) -> None:
        """Look, at every tick of the keeper; more seldom if that takes long."""
        begun = time.monotonic()
        if begun < self._due:
            return
        with containing("how many batches are ready"):
            ready = self._ready()
            if ready is not None:
                self._looks.append((self._clock(), int(ready) <= 0))
        ended = time.monotonic()
        self._due = ended + SHARE * (ended - begun)

    def sentences(self, of: Circumstance) -> list[str]:
        if of.category != Category.DATA_LOADING:
            return []
        if self._clock() - of.opened > SETTLED_NS and self._settled is not None and self._settled[0] == of:
            return self._settled[1]
        # When an incident began is an estimate, so earlier looks can only say that there was nothing.
        looks = [empty for at, empty in list(self._looks) if at >= of.opened]
        if len(looks) < LEAST:
            earlier = [empty for at, empty in list(self._looks) if at >= of.began][-LEAST:]
            looks = earlier if 2 * sum(earlier) >= LEAST else []
        if len(looks) < LEAST:
            return []
        # Of the first ones, as many as change seldom: 8, 16, 32, ...
        count = 1 << (len(looks).bit_length() - 1)
        empty = sum(islice(looks, count))
        text = f"the input queue was empty in {empty} of {count} looks"
        if empty <= FEW * count:
            text += ": batches were ready, so what takes the time is to take them"
        self._settled = of, [text]
        return [text]
