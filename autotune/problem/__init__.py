"""Subject of a search: a config with its knobs, the trainer's command, and the machine, checked before any trial."""
