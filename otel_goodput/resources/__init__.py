"""Where a job runs: attributes of the resource that spans and metrics bear."""
