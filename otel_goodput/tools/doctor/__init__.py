"""``otel-goodput env`` and ``otel-goodput doctor``: what is configured, and whether it can work."""

from otel_goodput.tools.doctor.examination import examine
from otel_goodput.tools.doctor.variables import environment

__all__ = ["environment", "examine"]
