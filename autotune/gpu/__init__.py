"""NVIDIA GPUs: the driver, which are there, who is on them, what they did."""
