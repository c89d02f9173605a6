"""Settings: the table of them, other variables, which process this is, the configuration in force."""
