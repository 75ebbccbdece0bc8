"""Benchmarks of the search itself: ``python -m autotune.bench``."""
