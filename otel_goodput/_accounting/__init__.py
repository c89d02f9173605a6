"""The pure core: events in, totals out. It has no clock, threads, logging or I/O; all times are integers in ns."""

from otel_goodput._accounting.events import Event
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._accounting.totals import Partition, Totals

__all__ = ["Event", "Ledger", "Partition", "Totals"]
