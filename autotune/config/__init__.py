"""The user's files: reads them, changes single values in them, applies, reverts, parses the ``autotune:`` section."""
