"""Benchmarks of the dataset functions of `autotune.tf`."""
