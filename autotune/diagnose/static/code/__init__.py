"""Reading of a trainer's sources without importing them: which code trains, and what is slow in it."""
