"""Web page and metrics of the daemon."""
