"""One trial of the trainer, from its plan to its ending."""
