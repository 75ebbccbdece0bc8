"""Checks that start no training: the machine, the config, the trainer's sources, the storage."""
