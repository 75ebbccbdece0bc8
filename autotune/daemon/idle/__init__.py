"""Idle machines: whether this one is idle, and whether somebody came while a search of ours runs."""
