"""Measurements of a trial: steps, host and GPU, and the statistics that turn them into numbers."""
