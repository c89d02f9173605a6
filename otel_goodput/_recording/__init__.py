"""Phases recorded as low-overhead spans, and the export of those spans."""
