"""Drift of a training: is it as fast as was confirmed, has it become slower than itself, and why. Pure functions."""
