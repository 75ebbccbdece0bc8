"""Trainers that really learn; each is started as a process of its own."""
