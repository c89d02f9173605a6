"""The account for people: of a live job, or of a run's journal."""

from otel_goodput.reports.build import Report, about, of_run

__all__ = ["Report", "about", "of_run"]
