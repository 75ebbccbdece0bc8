"""Watched trainings: their folders, what they report, and what is said about them."""
