"""Settings: reads the user's YAML, changes single values in it, applies, reverts, parses the ``autotune:`` section."""
