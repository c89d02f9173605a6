"""``otel-goodput send``: what the `file` outlet wrote is sent over OTLP, later and from elsewhere."""
