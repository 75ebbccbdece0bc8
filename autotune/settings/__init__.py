"""The user's YAML: reading it, changing single values in it, applying and reverting, the ``autotune:`` section."""
