"""``otel-goodput collector``: the collector's configuration, its systemd unit or a Kubernetes manifest, in one file."""
