"""Phases as spans: what a training loop opens, made cheap, and what becomes of it."""
