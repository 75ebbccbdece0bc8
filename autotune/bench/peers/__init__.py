"""The search against other ways to tune, on simulated trainings."""
