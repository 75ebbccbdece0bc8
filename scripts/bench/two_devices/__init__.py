"""Benchmarks of the pipeline over two devices."""
