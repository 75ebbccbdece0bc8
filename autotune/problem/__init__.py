"""What is tuned: a config with its knobs, the trainer's command, and the machine, read and checked before any trial."""
