"""The journal of a run: crash-safe records, the threads that maintain them, and what a restart reads back."""
