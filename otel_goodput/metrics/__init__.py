"""The metrics: what the account is shown as."""
