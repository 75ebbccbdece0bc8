"""Sampler: proposes the next point; pure, without any process, clock, file or storage."""
