"""Study: the record of all trials of one identity, its journal, and its summary."""
