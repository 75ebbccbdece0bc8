"""Small trainers that do one thing slowly, as their config says: scripts, each with ``--config FILE.json``."""
