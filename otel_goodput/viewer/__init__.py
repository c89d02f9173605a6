"""The viewer: one page that shows where a run's time went, as a file or served live."""
