"""Benchmark of the tuner on tables of measured systems: every combination that ran, with its throughput."""
