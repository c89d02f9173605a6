"""Text handling: remove credentials and control characters, and parse durations and times."""
