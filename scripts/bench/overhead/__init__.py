"""Overhead benchmarks: the cost of autotune itself."""
