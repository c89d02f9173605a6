"""Where ml-goodput-measurement keeps its modules; ``otel_goodput.compat.install()`` puts ours here."""
