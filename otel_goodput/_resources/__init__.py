"""Where a job runs: resource attributes for its spans and metrics."""
