"""The journal of a run: crash-safe records and their files, and the small files next to them."""
