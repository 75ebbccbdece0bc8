"""The doors: one verb per module."""
