"""HTML report of a study: one file, no scripts, no network, untrusted text escaped."""
