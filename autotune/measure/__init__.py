"""Measurements of trials: steps, host, GPUs, and their statistics."""
