"""The user's files: parsing configs and the ``autotune:`` section, changing single values, apply and revert."""
