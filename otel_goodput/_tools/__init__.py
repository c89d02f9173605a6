"""The command ``otel-goodput`` and its subcommands."""
