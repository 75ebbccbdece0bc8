"""Daemon: a queue of searches for idle machines, monitoring of trainings, and a web page."""
