"""Sampler of autotune's searches; it comes with the package ``autotune``."""

from autotune import ConfigSampler


__all__ = ["ConfigSampler"]
