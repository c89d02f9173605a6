"""``otel-goodput env`` prints the configuration, ``otel-goodput doctor`` checks whether it can work."""

from otel_goodput._tools.doctor.examination import examine
from otel_goodput._tools.doctor.settings import environment

__all__ = ["environment", "examine"]
