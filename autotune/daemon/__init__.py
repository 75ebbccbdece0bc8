"""The daemon: a queue of searches for idle machines, a watch over trainings, a page; workers on other machines."""
