"""Which rank stands in for a leader that gives no sign of life.

All other ranks look at the leader's sign of life. If there is none for long, the lowest rank that lives stands in. A
rank that cannot read the leader's sign does not know that there is none: it does not stand in. No clocks are compared,
because those of hosts may differ: a rank lives if its sign changes from one look to the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from otel_goodput._live.channels import RETRY_S, Channel

SILENT_S: Final = 30.0  # a rank without a sign of life for so long may be dead
AT_ONCE: Final = 8  # ranks of which it is not known yet whether they live, looked at in one round


class _Seen(NamedTuple):
    signs: Mapping[str, bytes]  # the latest ones, by the way that they took
    first: float  # when this rank was looked at first, s, monotonic
    at: float = -math.inf  # when its sign was another one than at the look before; -inf: never
    way: str = ""  # that this sign took


class Watch:
    """Looks at signs of life for the rank `own`, which does not lead. Not for the training thread: a disk may hang."""

    def __init__(self, channel: Channel, own: int, leader: int) -> None:
        self._channel = channel
        self._leader = leader
        self._before = [rank for rank in range(own) if rank != leader]
        self._seen: dict[int, _Seen] = {}
        self._passed: dict[int, float] = {}  # until when ranks that are dead are not looked at again

    def stands_in(self) -> bool:
        """Whether the leader has fallen silent since this began, and all ranks before this one are silent, too."""
        seen, signs = self._look(self._leader)
        silent = time.monotonic() - seen.at
        if silent < SILENT_S / 2 or seen.at == -math.inf or seen.way not in signs:
            return False
        # Sooner than it matters: it takes a while to see whether the ranks before this one live.
        return not self._any_lives() and silent >= SILENT_S

    def _any_lives(self) -> bool:
        """Whether one of the ranks before this one lives, or may live."""
        unknown = 0
        for rank in self._before:
            if time.monotonic() < self._passed.get(rank, -math.inf):
                continue
            if (lives := self._lives(rank)) is None:
                unknown += 1
            if lives or unknown == AT_ONCE:
                return True
        return unknown > 0

    def _lives(self, rank: int) -> bool | None:
        """Return whether a rank lives; None if it was looked at too little."""
        (seen, signs), now = self._look(rank), time.monotonic()
        if now - seen.at < SILENT_S:
            return True
        if signs and now - seen.first < SILENT_S / 2:
            return None
        self._passed[rank] = now + min(RETRY_S, SILENT_S) / 2
        return False

    def _look(self, rank: int) -> tuple[_Seen, Mapping[str, bytes]]:
        """Look at a rank: return what has been seen of it, and its signs as far as they can be read now."""
        signs, now = self._channel.signs(rank), time.monotonic()
        seen = self._seen.get(rank) or _Seen({}, now)
        for way, sign in signs.items():
            if seen.signs.get(way, sign) != sign:
                seen = seen._replace(at=now, way=way)
        self._seen[rank] = seen = seen._replace(signs={**seen.signs, **signs})
        return seen, signs
