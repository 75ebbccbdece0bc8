"""NVIDIA GPUs: the driver, the process that samples it, timeline, usage and occupancy."""
