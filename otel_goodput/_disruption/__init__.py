"""Disruptions of a job from outside: signals, notices of the platform, and what launchers report."""
