"""The programs; each is a script."""
