"""Simulated trainings of which the truth is known."""
