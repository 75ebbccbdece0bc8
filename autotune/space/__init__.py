"""Search space: knobs, the table of known knobs, and the space that they span."""
