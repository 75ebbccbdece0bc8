"""Trainers that ship with the product: real enough to tune, small enough to read."""
