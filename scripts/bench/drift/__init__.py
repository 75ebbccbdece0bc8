"""Benchmark of the tests for drift: false alarms, delays and causes on simulated trainings."""
