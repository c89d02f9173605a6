"""The memory of a run: crash-safe records, what keeps them, and what a restart reads back."""
