"""Checks that make short trials of the trainer: what limits it, and what a change gains."""
