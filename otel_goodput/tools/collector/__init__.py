"""``otel-goodput collector``: a configuration for the OpenTelemetry Collector, or a Kubernetes manifest, in one file."""
