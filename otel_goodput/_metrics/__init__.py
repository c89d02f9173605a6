"""The metrics that show the account."""
