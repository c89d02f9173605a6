"""What recording costs: ``python -m benchmarks``, or ``make bench``. Timings are never tests."""
