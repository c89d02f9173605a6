"""``otel-goodput env`` prints the configuration, ``otel-goodput doctor`` checks whether it can work."""
