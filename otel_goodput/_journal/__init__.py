"""The journal of a run: crash-safe records and their files, and what is written beside them."""
