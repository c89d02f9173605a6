"""The account for people: of a live job, or of a run's journal."""
