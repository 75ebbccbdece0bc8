"""Web page of the daemon, and its metrics."""
