"""The pure core: events in, totals out. No clock, no threads, no logging, no I/O, integers of ns."""

from otel_goodput.accounting.events import Event
from otel_goodput.accounting.ledger import Ledger
from otel_goodput.accounting.totals import Partition, Totals

__all__ = ["Event", "Ledger", "Partition", "Totals"]
