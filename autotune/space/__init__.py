"""Search space: knobs, and the catalog of known knobs."""
