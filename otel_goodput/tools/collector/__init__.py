"""``otel-goodput collector``: the collector's configuration, or a Kubernetes manifest, in one file."""
