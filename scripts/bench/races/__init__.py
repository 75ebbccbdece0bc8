"""Benchmark of races: what they say of trainings whose learning is known."""
