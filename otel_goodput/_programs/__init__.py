"""Programs of others that are recorded without a line: as a command, by ``opentelemetry-instrument``, in notebooks."""
