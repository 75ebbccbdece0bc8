"""Diagnosis: why a training is slow, and what that gains which would help; see `findings`."""
