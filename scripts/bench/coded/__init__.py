"""Trainers whose loading is written into their code, tuned by autotune and by others."""
