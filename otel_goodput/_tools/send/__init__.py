"""``otel-goodput send``: sends over OTLP, later or from another machine, what the exporter ``file`` wrote."""
