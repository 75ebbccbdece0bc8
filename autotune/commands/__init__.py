"""Commands of ``autotune``: one per module."""
