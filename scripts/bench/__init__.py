"""Benchmarks of autotune itself: ``python -m scripts.bench``, from a checkout."""
