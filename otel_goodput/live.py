"""The account of this process, live: the journal that feeds it, the keeper of that, and the instruments that show it.

For a recorder and for ``GoodputSpanProcessor`` alike.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from opentelemetry.metrics import MeterProvider

from otel_goodput import deadline
from otel_goodput.accounting import Ledger, Totals
from otel_goodput.clock import anchored
from otel_goodput.config import Config
from otel_goodput.journal.account import Account
from otel_goodput.journal.journal import Journal, Segment
from otel_goodput.journal.keeper import Keeper
from otel_goodput.journal.opening import Opened, open_journal
from otel_goodput.journal.span_index import SpanIndex
from otel_goodput.metrics import instruments
from otel_goodput.semconv import SCOPE_NAME
from otel_goodput.version import __version__


class LiveAccount:
    """Opens the journal, or one in memory only, and goes on with what it holds.

    Args:
        config: in force.
        flags: of the ATTEMPT record.
        in_memory: the account begins anew with every process.

    Attributes:
        account: what events are told to.
        opened: the journal on the disk; None where it is in memory.
        run_id, attempt: which life of which run this is.
        index: the spans of this attempt, and those that attempts before it did not export.
    """

    def __init__(self, config: Config, flags: int = 0, *, in_memory: bool = False) -> None:
        clock = anchored()
        self.opened: Opened | None = None
        if in_memory:
            journal, ledger = Journal(0, config.process_index, Segment(None)), Ledger(config.windows)
            self.run_id, self.attempt, self.index = config.run_id, 0, SpanIndex(0)
        else:
            self.opened = opened = open_journal(config, clock)
            journal, ledger = opened.journal, opened.restored.ledger
            self.run_id, self.attempt = opened.run_id, opened.attempt
            self.index = opened.restored.index.successor(opened.attempt)
        ledger.collect_finished()
        self.account = Account(journal, ledger, clock)
        if self.opened is not None:
            self.opened.introduce(self.account)
        self.account.begin_attempt(flags)

    def keep(self, work: Callable[[], None]) -> Keeper:
        """What keeps the journal, not started yet; does `work` at every tick."""
        run, prepare = (None, None) if self.opened is None else (self.opened.run, self.opened.prepare)
        self.keeper = Keeper(self.account, run, self.index, work, prepare)
        return self.keeper

    def measure(
        self,
        provider: MeterProvider,
        totals: Callable[[], Totals],
        overhead: Callable[[], int],
        dropped: Callable[[], dict[str, int]],
        *ready: Callable[[], int | None],
        durations: bool = True,
    ) -> None:
        """Show the account as instruments of `provider`; `durations`: those of single steps and phases too."""
        meter = provider.get_meter(SCOPE_NAME, __version__)
        record: Any = instruments.register(meter, totals, overhead, dropped, *ready)
        if durations:
            self.account.on_steps, self.account.on_phases = record.steps, record.phases

    def close(self, seconds: float, *, release: bool = False) -> bool:
        """Write what there is, and :meth:`release` it; a disk that hangs is given up after so long.

        Returns whether it was done.
        """

        def close(_: int) -> None:
            self.keeper.stop()
            if release:
                self.release()

        self.account.hanging = bool(deadline.close_all([("journal", close)], seconds))
        return not self.account.hanging

    def release(self) -> None:
        """The journal has no writer any more."""
        if self.opened is not None and self.opened.lock is not None:
            self.opened.lock.release()

    def orphan(self) -> None:
        """In a forked child: its parent's journal is not written to, and its lock does not outlive the parent here."""
        self.account.orphan(Ledger if self.opened is None else self.opened.recall)
        self.release()


def call_in_children(silence: Callable[[], None]) -> None:
    """Call the method in every forked child, as long as its object lives."""
    if hasattr(os, "register_at_fork"):
        method = weakref.WeakMethod(silence)  # what is registered stays for ever, the object need not
        os.register_at_fork(after_in_child=lambda: (call := method()) and call())
