"""The live view of the GPUs, and of a process on them."""
