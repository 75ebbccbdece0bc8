"""Benchmarks of autotune itself: ``python -m autotune.bench``, from a checkout."""
