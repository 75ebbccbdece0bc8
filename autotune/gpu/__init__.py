"""NVIDIA GPUs: driver, discovery, occupancy, throttling, timeline and usage."""
