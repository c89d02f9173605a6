"""The modules of ml-goodput-measurement, by their old names; ``otel_goodput.compat.install()`` puts them there."""
