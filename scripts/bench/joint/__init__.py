"""Benchmark of several machines on one study, simulated in virtual time."""
