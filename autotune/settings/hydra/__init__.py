"""Configs of Hydra: composed from files without running Hydra, and given to trials as overrides."""
