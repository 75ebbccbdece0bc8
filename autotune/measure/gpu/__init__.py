"""NVIDIA GPUs: driver, collector process, timeline, usage, occupancy."""
