"""The live account of this process: its journal, the keeper that maintains the journal, and its instruments.

Used by ``Recorder`` and ``GoodputSpanProcessor``.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable

from opentelemetry.metrics import MeterProvider

from otel_goodput._accounting import Ledger, Totals
from otel_goodput._accounting.totals import Brief
from otel_goodput._journal.account import PATIENCE_S, Account
from otel_goodput._journal.facts import FactSheet, facts_of
from otel_goodput._journal.incidents import IncidentSheet
from otel_goodput._journal.journal import Journal
from otel_goodput._journal.loader_times import LoaderSheet
from otel_goodput._journal.usage import AttemptUsage, UsageSheet
from otel_goodput._journal.usage_now import UsageNow
from otel_goodput._live.keeper import Keeper
from otel_goodput._live.live_job import JobBrief
from otel_goodput._live.opening import Opened, in_memory_journal, open_journal
from otel_goodput._live.ranks import RankExchange
from otel_goodput._metrics import instruments
from otel_goodput._metrics.instruments import Durations
from otel_goodput._metrics.rank_waits import RankWaits
from otel_goodput._metrics.usage_rows import Usages
from otel_goodput._runtime import deadline, host
from otel_goodput._settings.config import Config
from otel_goodput._text.redact import redacting_logger
from otel_goodput.semconv import SCOPE_NAME
from otel_goodput.version import __version__

logger = redacting_logger("otel_goodput")


class LiveAccount:
    """Opens the journal and continues the account that it holds; `flags` are those of the ATTEMPT record.

    If the journal is kept `in_memory` only, the account starts anew with every process. `begun`: the job begins; see
    :func:`~otel_goodput._live.opening.open_journal`.
    """

    def __init__(self, config: Config, flags: int = 0, *, in_memory: bool = False, begun: bool = False) -> None:
        clock, leap = host.current.clock()
        self._config = config
        self.opened = opened = in_memory_journal(config) if in_memory else open_journal(config, clock, begun=begun)
        ledger = opened.restored.ledger
        self.run_id, self.attempt = opened.run_id, opened.attempt
        self.index = opened.restored.index.successor(opened.attempt)  # with what earlier attempts did not export
        self.past = ledger.past()  # what the attempts before have done
        ledger.collect()
        self.account = Account(opened.journal, ledger, clock, leap)
        self._keeper: Keeper | None = None
        opened.introduce(self.account)
        self.usage = UsageSheet(self.attempt, config.process_index) if config.usage_interval else None
        self.incidents = IncidentSheet(self.attempt, config.process_index)
        self.loader = LoaderSheet(self.attempt, config.process_index)
        # What the ranks of the job exchange; None if this is the only one.
        self.ranks: RankExchange | None = None
        if config.process_count > 1 and not in_memory:
            self.ranks = RankExchange(config, self.account, self._meet, self._usage_now)
        self.facts = FactSheet(config, self.attempt, clock())
        self.account.begin_attempt(flags, opened.restored.last_sign, config.stalled_after)

    def _meet(self) -> str:
        """Return the id under which the ranks of the job meet: the one that was asked for, the same in all of them.

        A process whose index is taken must not meet them.
        """
        return self.run_id if self.opened.instead_of else self._config.run_id

    def _usage_now(self) -> UsageNow | None:
        return None if self.usage is None else self.usage.now

    def usages(self) -> Usages:
        """Return the host of each rank, and what it uses now, as far as that is known here."""
        if self.ranks is not None:
            return self.ranks.usages()
        now = self._usage_now()
        return {} if now is None else {self._config.process_index: ("", now)}

    def brief(self, *, published: bool = False) -> tuple[Brief, JobBrief | None]:
        """Return a part of the account of this process, and of that of all ranks if there is one here.

        `published` as for :meth:`RankExchange.figures`.
        """
        own = self.account.brief(math.inf if host.current.in_memory else PATIENCE_S)  # in memory, nobody trains
        return own, None if self.ranks is None else self.ranks.brief(published=published)

    def used(self) -> list[AttemptUsage]:
        """Return what this process has used up to now, if that is sampled."""
        return [] if self.usage is None else self.usage.of_run()

    def before(self) -> int | None:
        """Return when the attempt before this one began, ns since the epoch; None if it left no facts."""
        if self.opened.run is None or not self.attempt:
            return None
        facts = facts_of(self.opened.run, self.attempt - 1, self._config.process_index)
        return None if facts is None else facts.started_at

    def keep(self, work: Callable[[], None], between: Callable[[], None] = lambda: None) -> Keeper:
        """Create the keeper of the journal, without starting it.

        It calls `work` at every tick, and `between` also while it is busy catching up.
        """

        def round_of_work() -> None:
            if self.opened.lock is not None:
                self.opened.lock.renew()
            work()

        opened = self.opened
        prepare = None if opened.missing is None else opened.prepare
        sheets = [sheet for sheet in (self.facts, self.usage, self.incidents, self.loader) if sheet is not None]
        self._keeper = Keeper(
            self.account, opened.run, self.index, round_of_work, prepare, between, sheets, lambda: self.provisional
        )
        return self._keeper

    def pause_by(self, pause: Callable[[float], float]) -> None:
        """Have the keeper pause by `pause`; see :meth:`Keeper.pause_by`."""
        if self._keeper is not None:
            self._keeper.pause_by(pause)

    def measure(
        self,
        provider: MeterProvider,
        totals: Callable[[], Totals | None],
        overhead: Callable[[], int],
        dropped: Callable[[], dict[str, int]],
        *ready: Callable[[], int | None],
        process: tuple[instruments.Cache, instruments.Waits] | None = None,
        ranks: RankWaits | None = None,
    ) -> Durations:
        """Register the account's instruments with a meter of `provider`, as :func:`instruments.register` takes them.

        `process` returns what the persistent compilation cache did, and how long this attempt waited to be started;
        None if nobody looks at either. `ranks` returns for which rank the job waited; None if it is one process alone.
        Returns the histograms of the durations, for :meth:`hear`.
        """
        meter = provider.get_meter(SCOPE_NAME, __version__)
        record = instruments.register(meter, totals, overhead, dropped, *ready)
        if process is not None:
            instruments.register_process(meter, *process)
        instruments.register_incidents(meter, self.incidents.all)
        if ranks is not None:
            instruments.register_ranks(meter, ranks)
        if process is not None:
            instruments.register_loader(meter, self.loader.times)
        if process is not None and self.usage is not None:
            instruments.register_usage(meter, self.usages)
        if self.ranks is not None:
            instruments.register_own_times(meter, self.ranks.own_times)
        return record

    def hear(self, record: Durations) -> None:
        """Record the durations of steps and phases."""
        self.account.listeners.listen_to_durations(record.take, record.record)

    def close(self, seconds: float, *, release: bool = False) -> bool:
        """Stop the keeper, which writes the rest of the journal, and `release` the lock.

        Waits `seconds` at most, in case the disk hangs; returns whether it finished in that time.
        """

        def close(_: int) -> None:
            if self._keeper is not None:
                self._keeper.stop()
            if release:
                self.opened.release()

        closed = not deadline.close_all([("journal", close)], seconds)
        self.account.hanging = not closed
        return closed

    def finish_ranks(self, seconds: float) -> None:
        """Publish what this rank did last, once its run is known; see :meth:`RankExchange.finish`."""
        if self.provisional and self._keeper is not None:  # the job was over before the leader had chosen the run
            self._keeper.tick()
        if self.ranks is not None and not self.provisional:
            self.ranks.finish(seconds, self.opened.run, self.attempt)

    def journal_of_job(self) -> Journal | None:
        """Return the journal of the job's own records; None if this process writes none (yet)."""
        return None if self.ranks is None else self.ranks.journal()

    @property
    def provisional(self) -> bool:
        """Whether the leader of this launch may still choose another run for it."""
        return self.opened.agreement is not None and self.opened.agreement.open

    def ask_leader(self, *, begun: bool) -> str:
        """While the run is :attr:`provisional`, see which one the leader has chosen; continue in it if `begun`.

        For the keeper's thread; it may wait for the disk. Returns what is to be said, once.
        """
        agreement = self.opened.agreement
        if agreement is None or not agreement.open:
            return ""
        text = agreement.look()
        return agreement.fail() if begun and agreement.other and not self._adopt(agreement.other) else text

    def _adopt(self, run_id: str) -> bool:
        """Continue in another run, of which the records so far become part; False if that cannot be written."""
        before, keeper = self.opened, self._keeper
        if before.run is None or keeper is None or before.mirror is not None:
            return False
        opened: Opened | None = None
        try:
            opened = open_journal(self._config, self.account.clock, begun=True, only=run_id)
            first, run, ledger = opened.journal.current, opened.run, opened.restored.ledger
            first.release()
            ledger.collect()
            if self.ranks is not None:
                self.ranks.collect(ledger)
            if run is None or first.path is None:
                return False
            keeper.move(run, opened.attempt, first.path, opened.restored)
        except OSError as error:
            logger.info("the journal stays in run %r: %s", self.run_id, error)
            if opened is not None:
                opened.withdraw()
            return False
        opened.journal, self.opened = self.account.journal, opened
        logger.info("run %r, which this process began, is part of run %r, which its leader chose", self.run_id, run_id)
        self.run_id, self.attempt, self.index = opened.run_id, opened.attempt, keeper.index
        self.facts.move(self.attempt)
        self.incidents.move(self.attempt)
        self.loader.move(self.attempt)
        if self.usage is not None:
            self.usage.move(self.attempt)
        opened.introduce(self.account)
        before.withdraw()
        return True

    def withdraw(self) -> None:
        """Stop, and remove this attempt's files: nothing has been recorded but its beginning."""
        if self._keeper is not None:
            self._keeper.abandon()
        self.account.orphan(Ledger)
        self.opened.withdraw()

    def orphan(self) -> None:
        """In a forked child, stop writing to the parent's journal and drop the lock inherited from the parent."""
        self.account.orphan(self.opened.recall)
        self.opened.release()


def call_in_children(silence: Callable[[], None]) -> None:
    """Call the bound method `silence` in every forked child, for as long as its object exists."""
    if hasattr(os, "register_at_fork"):
        method = weakref.WeakMethod(silence)  # fork handlers cannot be unregistered and must not keep the object alive
        os.register_at_fork(after_in_child=lambda: (call := method()) and call())
