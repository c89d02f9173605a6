"""The programs; each is a script of its own."""
