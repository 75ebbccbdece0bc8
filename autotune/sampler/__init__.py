"""Sampler: proposes the next trial. Pure: no processes, clock, files or storage."""
