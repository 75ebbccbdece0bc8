"""Protection of the user's files around the trials: snapshots, checkpoint backups, and restoring."""
