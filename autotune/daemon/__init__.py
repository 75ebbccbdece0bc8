"""The daemon: a queue of searches for idle machines, and a watch over trainings."""
