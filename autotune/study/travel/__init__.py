"""Studies that travel: the portable file, its export and import, repair, and a description for people."""
