"""Storages of studies, and their addresses."""
