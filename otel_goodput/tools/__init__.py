"""The command `otel-goodput` and what it does."""
