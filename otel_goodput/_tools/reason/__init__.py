"""``otel-goodput reason``: records why a run was disrupted."""
