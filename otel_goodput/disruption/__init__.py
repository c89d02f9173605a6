"""What ends a job from outside, made known beforehand: signals, notices of the platform, and what launchers tell."""
