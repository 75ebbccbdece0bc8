"""Study: the trials of one identity, conclusions from them, and their storages."""
