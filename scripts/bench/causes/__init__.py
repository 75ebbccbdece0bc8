"""Cases with exactly one known cause of slowness each, and how often the verdict of a diagnosis names it."""
