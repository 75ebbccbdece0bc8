"""Live view of the GPUs, and of a process on them."""
