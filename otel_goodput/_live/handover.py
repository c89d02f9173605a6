"""The account of a job as its leader leaves it in a store, for a deputy that cannot read the leader's records.

The ranks keep their messages in the store until what they say is in that account. So whoever goes on from it, with the
messages that are there, misses nothing.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput._accounting import Ledger
from otel_goodput._accounting.codec import COUNT, NUMBER, Blob, Blobs, Each, Row
from otel_goodput._accounting.job import JobAccount
from otel_goodput._accounting.ranks import NEVER
from otel_goodput._journal import state_file
from otel_goodput._journal.account import Account
from otel_goodput._journal.clock_offsets import KnownOffset
from otel_goodput._journal.job_waits import JobWaits, plain_waits, waits_of
from otel_goodput._live.channels import GIVEN
from otel_goodput._runtime import files
from otel_goodput._timeline.recovery import Restored, prove

FIRST_S: Final = 1.0  # from the first account that is left to the next; then twice as long each time,
EVERY_S: Final = 15.0  # up to so long, if it takes no more than
_SHARE: Final = 1000  # one part in so many of a core
MOST: Final = files.MIB  # bytes; a larger one is not left
FORM: Final = state_file.Form("account of a job", b"OGACCNT\0", 1, 16 * files.MIB, MOST)
OFFSETS: Final = 1024  # of clocks; the latest ones are left
_OFFSETS: Final = Each(Row(COUNT, COUNT, COUNT, NUMBER, COUNT, make=KnownOffset._make))


class Handover(NamedTuple):
    """An account: the ledger of the job's own records, what it waited for, and how far clocks are ahead."""

    ledger: Ledger
    waits: JobWaits
    offsets: Sequence[KnownOffset]


def encode(ledger: tuple[dict[str, Any], list[Blob]], waits: JobWaits, offsets: Sequence[KnownOffset]) -> bytes:
    """Return the bytes of an account, whose ledger was dumped; none if they are too many."""
    head, blobs = ledger
    rows = [tuple(one) for one in offsets[-OFFSETS:]]
    text = state_file.text_of({"ledger": head, "waits": plain_waits(waits), "offsets": rows})
    data = b"".join(state_file.pieces(FORM, text, blobs))
    return data if len(data) <= FORM.most else b""


def decode(data: bytes, spans: Sequence[int]) -> Handover:
    """Return the account that is in `data`, with rolling windows of the lengths `spans` (ns).

    It comes from another process and is not trusted: any exception may be raised.
    """
    head, blobs = state_file.opened(data, FORM)
    ledger = Ledger.load(head["ledger"], blobs, spans)
    prove(Restored(ledger, last_sign=ledger.settled.now))
    return Handover(ledger, waits_of(head["waits"]), _OFFSETS.load(head["offsets"], Blobs()))


class Covered:
    """Which messages of ranks are in an account, by up to when each of them says what its rank did."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}  # of messages, from the first one of each rank on
        self._taken: Counter[int] = Counter()
        self._open: dict[int, deque[tuple[int, int]]] = {}  # count and moment (ns) of those that may not be in it

    def take(self, rank: int, known: int) -> None:
        """Take the next message of a rank, which says what that did up to the moment `known`, ns."""
        self._taken[rank] += 1
        self._open.setdefault(rank, deque(maxlen=GIVEN)).append((self._taken[rank], known))

    def reach(self, moment: int, common: Callable[[int, int], int]) -> None:
        """Note that the account has all up to a `moment` (ns); `common` returns that of a rank by the same clock."""
        for rank, waiting in self._open.items():
            while waiting and common(rank, waiting[0][1]) <= moment:
                self.counts[rank], _ = waiting.popleft()


def account_of(
    job: JobAccount, own: Account, waits: JobWaits, offsets: Sequence[KnownOffset], covered: Covered
) -> bytes:
    """Return the account of a `job`, whose records are up to date, as bytes, and note which messages it has.

    That of ranks that step apart is not in the job's `own` records: there are no bytes of it.
    """
    with own.lock:
        settled, state = own.ledger.settled, own.ledger.dump() if job.together else None
        reached = NEVER if state is None else 0 if settled.begin is None else settled.now
    covered.reach(reached, job.common_time)
    return b"" if state is None else encode(state, waits, offsets)


class Turn:
    """When to leave the next account."""

    def __init__(self) -> None:
        self._due = self._began = 0.0
        self._wait = FIRST_S / 2

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._wait = min(2 * self._wait, EVERY_S)
        self._due = time.monotonic() + max(self._wait, _SHARE * (time.thread_time() - self._began))

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due
