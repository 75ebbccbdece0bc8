"""Simulated trainers with known truth."""
