"""Reading journals: segments in order, phases, the account of a run as its journal gives it."""
