"""What this rank publishes of itself for the account of the job: what it did, and who it is (rule R11)."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from otel_goodput._accounting import Event, Ledger
from otel_goodput._accounting.events import NOT_KNOWN
from otel_goodput._accounting.job import holds_for_job
from otel_goodput._accounting.own_time import OwnTime
from otel_goodput._accounting.rank_updates import RankUpdate
from otel_goodput._journal.account import Account
from otel_goodput._journal.usage_now import UsageNow
from otel_goodput._live.channels import RankChannel
from otel_goodput._live.clock_exchange import OwnClock
from otel_goodput._live.rank_messages import MessageTooLarge, RankMessage, encode
from otel_goodput._settings.config import Config
from otel_goodput._settings.devices import local_devices
from otel_goodput._text.durations import NS

UNSETTLED_NS: Final = 1_000_000_000  # a thread may have read the clock so long before what it records is there
USAGE_S: Final = 60.0
SAMPLES: Final = 3  # that may be missing, one after another
_NO_SAVES: Final[Mapping[int, int]] = {}


class Publisher:
    """Takes what this rank did from its account, and publishes it.

    Args:
        config: the configuration in force.
        account: of this rank. It records nothing before this is created.
        usage: returns what this process uses now; None before that is sampled.

    Attributes:
        rank, role: of this process.
        place: its host and its process id.
        attempt: its number, from 0; ``NOT_KNOWN`` before that is set.
        clock: what is known of its clock.
        usage_lasts: for so long, s, a sample of usage says how things are now.
        own_time: returns what samples of the training thread say so far.
    """

    def __init__(self, config: Config, account: Account, usage: Callable[[], UsageNow | None] = lambda: None) -> None:
        self.rank, self.role = config.process_index, config.role or ""
        self.place = socket.gethostname(), os.getpid()
        self.attempt = NOT_KNOWN
        self.clock = OwnClock(account.clock, self.rank)
        self.account, self.usage = account, usage
        self._used: UsageNow | None = None  # what of that was published last
        self.usage_lasts = USAGE_S + SAMPLES * (config.usage_interval or 0) / NS
        self.own_time: Callable[[], OwnTime] = OwnTime
        self._number = 0  # of the next message
        self._devices = 0  # as far as is known
        self._notes = False  # what holds for the job is noted
        self._noted = deque[Event]()
        self.collect(account.ledger)

    def collect(self, ledger: Ledger) -> None:
        """Begin with what `ledger` is fed, which is the account's, or becomes it."""
        ledger.begin_updates()
        self._noted.clear()

    def sample_by(self, own_time: Callable[[], OwnTime]) -> None:
        """Publish what `own_time` returns, too."""
        self.own_time = own_time

    @property
    def devices(self) -> int:
        """How many this process computes with; 0 if that is not known (yet)."""
        self._devices = local_devices() or self._devices
        return self._devices

    def take_update(self) -> RankUpdate | None:
        """Return what this rank did since the last call, up to now; None if nothing is published of it."""
        account = self.account
        at = account.clock()
        caught_up = account.refresh()
        with account.lock:
            reached = account.reached
            if not caught_up:
                return account.ledger.take_update(reached)
            return account.ledger.take_update(max(at, reached), settled=max(at - UNSETTLED_NS, reached))

    def publish(self, channel: RankChannel, update: RankUpdate) -> Sequence[RankUpdate]:
        """Publish what this rank did; returns what each message says, if one is too small for all. May wait."""
        try:
            about = self._number, self.attempt, *self.place, self.role
            usage = self.usage()
            new = None if usage is self._used else usage
            message = encode(RankMessage(*about, self.devices, self.clock.signs(), update, new, self.own_time()))
        except MessageTooLarge:
            return [part for half in update.halves() for part in self.publish(channel, half)]
        channel.publish(message)
        self._number += 1
        self._used = usage
        return [update]

    # --- what holds for the job ---------------------------------------------------------------------------------------

    def note(self) -> None:
        """Note from now on what this rank records that holds for the job; see :func:`holds_for_job`."""
        self._notes = True
        self.account.listeners.listen_to_single(self._note)

    def note_no_more(self) -> None:
        self._notes = False
        self._noted.clear()

    def _note(self, events: list[Event]) -> None:
        if self._notes:
            self._noted += [event for event in events if holds_for_job(event, _NO_SAVES)]

    def noted(self, until: int) -> Iterator[Event]:
        """Yield what was noted `until` a moment (ns), once."""
        covers = self.account.ledger.covers
        while self._noted and self._noted[0].time <= until:
            yield from holds_for_job(self._noted.popleft(), covers)
