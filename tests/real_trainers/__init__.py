"""Trainers of public repositories, as rows of a table; see `tests.real_trainers.trainer` and `tests.soak.searches`."""
