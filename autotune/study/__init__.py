"""Study: the trials of one identity, what is concluded of them, and the storages that keep them."""
