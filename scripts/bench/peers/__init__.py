"""Our search against other tuners, on simulated trainers."""
