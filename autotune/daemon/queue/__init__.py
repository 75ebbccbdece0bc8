"""Queue of searches: entries on disk, and what each of them waits for."""
