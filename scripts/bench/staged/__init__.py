"""Trainers with one staged cause of slowness each, see `scripts.bench.staged.benchmark`."""
