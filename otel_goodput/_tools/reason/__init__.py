"""``otel-goodput reason``: says afterwards why an attempt followed another."""
