"""``otel-goodput send``: what the `file` exporter wrote is sent over OTLP, later and from elsewhere."""
