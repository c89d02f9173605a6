"""Reports for people: the account of a live job, of a run's journal or of a timeline."""
