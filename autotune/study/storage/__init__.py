"""Storages of studies: where they are kept, and how that is said."""
