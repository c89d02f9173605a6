"""What the ranks of a job exchange, and which of them makes the account of all (rule R11).

Every few seconds each rank publishes what it did since the last time, on a thread of its own. It never takes part in a
collective operation, and nothing waits for it. One rank is the leader, which makes the account; if it gives no sign of
life, its deputy does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from otel_goodput._accounting import Ledger
from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.own_time import OwnTime, OwnTimes
from otel_goodput._journal.account import Account
from otel_goodput._journal.journal import Journal
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.usage_now import UsageNow
from otel_goodput._live.channels import RankChannel
from otel_goodput._live.deputy import Deputy
from otel_goodput._live.leader import Leader
from otel_goodput._live.live_job import JobBrief, JobFigures, LiveJob
from otel_goodput._live.publisher import Publisher
from otel_goodput._runtime.guard import contain, started
from otel_goodput._settings.config import Config

EVERY_S: Final = 5.0  # from one update to the next;
FIRST_S: Final = 0.5  # the first ones come sooner, each after twice as long as the one before
ALL_S: Final = 60.0  # a rank that has not been heard of so long after the job began is not waited for any more
LAST_S: Final = 3.0  # at the end of the job, for the last updates of the other ranks
_LOOK_S: Final = 0.05


class RankExchange:
    """Publishes what this rank does and, if it leads, accounts the job of all ranks; see :meth:`start`.

    Args:
        config: the configuration in force.
        account: what this rank does. It records nothing before this is created.
        usage: returns what this process uses now; None before that is sampled.
        meet: returns the id under which the ranks of the job meet in a store, once the run is known; by default the one
            that was asked for.
    """

    def __init__(
        self,
        config: Config,
        account: Account,
        meet: Callable[[], str] | None = None,
        usage: Callable[[], UsageNow | None] = lambda: None,
    ) -> None:
        self._config, self._meet = config, meet or (lambda: config.run_id)
        self._own = Publisher(config, account, usage)
        self._duty: Leader | Deputy | None = None  # of this rank, once the run is known
        self._on_deputy: Callable[[bool], None] = lambda _: None
        self._began, self._since = account.clock(), time.monotonic()
        self._exchanging = threading.Lock()  # held while updates are exchanged, for which a disk may be waited for
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-ranks", daemon=True)
        if config.leads:
            self._own.note()

    def collect(self, ledger: Ledger) -> None:
        """Begin with what `ledger` is fed, which is the account's, or becomes it."""
        self._own.collect(ledger)

    def listen(self, on_deputy: Callable[[bool], None]) -> None:
        """Have `on_deputy` called when this rank begins, or ceases, to be the leader's deputy, on a thread of this."""
        self._on_deputy = on_deputy

    def start(self, run: RunDirectory | None, attempt: int) -> None:
        """Start to publish, the first time that this is called.

        Args:
            run: the folder of the run; None if its journal is in memory only.
            attempt: number of this attempt, from 0.
        """
        if self._duty is None:
            duty = self._open(run, attempt)
            offsets = duty.offsets if isinstance(duty, Leader) else None
            self._own.clock.start(self._meet(), None if offsets is None else lambda: offsets.measuring)
            started(self._thread, "what this rank does is missing in the live account of the job")

    def _open(self, run: RunDirectory | None, attempt: int) -> Leader | Deputy:
        """Decide the duty of this rank, and open the channel."""
        config, own = self._config, self._own
        self._since, own.attempt = time.monotonic(), attempt
        own.clock.compare(run)
        channel = RankChannel(run, self._meet(), own.rank, config.process_count, config.leader)
        if config.leads:
            self._duty = Leader(config, own, run, channel, self._began)
        else:
            self._duty = Deputy(config, own, run, channel, lambda stands_in: self._on_deputy(stands_in))
        return self._duty

    def _loop(self) -> None:
        wait = FIRST_S
        while not self._stop.wait(wait):
            wait = min(2 * wait, EVERY_S)
            self.exchange()

    def exchange(self) -> None:
        """Publish what this rank did, and take what the others have published. Errors are reported, not raised."""
        try:
            with self._exchanging:
                if (duty := self._duty) is not None and (update := self._own.take_update()) is not None:
                    duty.exchange(update, last=self._stop.is_set())
        except Exception as error:
            contain("the exchange of the ranks", error)

    # --- figures ------------------------------------------------------------------------------------------------------

    @property
    def _live(self) -> LiveJob | None:
        return None if self._duty is None else self._duty.live

    @property
    def why(self) -> str:
        """Why there are no figures of the job here (yet)."""
        if not self._config.leads:
            return f"process {self._config.leader} has the account of the job"
        live = self._live
        return "not all other ranks have been heard of yet" if live is not None else "no other rank has been heard of"

    def figures(self, *, published: bool = False) -> JobFigures | None:
        """Return the account of the job; None if there is none (yet), and this rank's own is shown in its place.

        That of a deputy is only for what is `published`.
        """
        live = self._live
        if live is None or not (self._config.leads or published):
            return None
        return live.figures(of_all=self._begins)

    def brief(self, *, published: bool = False) -> JobBrief | None:
        """Return a part of :meth:`figures`."""
        live = self._live
        if live is None or not (self._config.leads or published):
            return None
        return live.brief(of_all=self._begins)

    @property
    def _begins(self) -> bool:
        """Whether figures are still to be those of all ranks."""
        return time.monotonic() - self._since < ALL_S

    def waits(self) -> Mapping[Cause, int] | None:
        """Return for which ranks the job waited since this process began, ns; None if that is not known."""
        live = self._live
        return None if live is None else live.waits()

    def usages(self) -> Mapping[int, tuple[str, UsageNow]]:
        """Return the host of each rank, and what it uses: none of it is old. Only of this one if no other is known."""
        live = self._live
        if live is not None:
            return live.usages()
        now = self._own.usage()
        return {} if now is None else {self._own.rank: (self._own.place[0], now)}

    def sample_by(self, own_time: Callable[[], OwnTime]) -> None:
        """Publish what samples of the training thread say, which `own_time` returns."""
        self._own.sample_by(own_time)

    def own_times(self) -> OwnTimes:
        """Return what the ranks do themselves inside of steps, as far as that is known here."""
        if (live := self._live) is None:
            return OwnTimes()
        with live.changing:
            return live.stragglers.times()

    def journal(self) -> Journal | None:
        """Return the journal of the job's own records; None if this process writes none (yet)."""
        live = self._live
        return None if live is None else live.records.journal

    def add_windows(self, spans: Sequence[int]) -> None:
        """Keep rolling windows of the lengths `spans` (ns), too."""
        if (live := self._live) is not None:
            live.records.account.add_windows(spans)

    # --- end ----------------------------------------------------------------------------------------------------------

    def finish(self, seconds: float, run: RunDirectory | None, attempt: int) -> None:
        """Publish the last update; the leader waits for those of the others, for some of the `seconds`.

        `run`, `attempt`: as for :meth:`start`, in case the job is over before that was called.
        """
        self._stop.set()
        account = self._own.account
        account.refresh()
        with account.lock:
            begun = account.ledger.totals().started_at is not None
        if begun and self._duty is None:
            self._open(run, attempt)
        until = time.monotonic() + min(seconds, LAST_S)
        self.exchange()
        while self._config.leads and (live := self._live) and not live.over and time.monotonic() < until:
            time.sleep(_LOOK_S)
            self.exchange()

    def close(self, _: int = 0) -> None:
        """Write the job's own records. May wait for the disk."""
        self._stop.set()
        self._own.clock.stop()
        if self._duty is not None:
            self._duty.close()

    def orphan(self) -> None:
        """In a forked child: publish nothing, and wait for no lock of the parent."""
        self._stop.set()
        self._own.clock.stop()
        if (live := self._live) is not None:
            live.records.orphan()
        self._duty = None
        self._exchanging = threading.Lock()
