"""What may vary: knobs, the table of known knobs, and the space that they span."""
