"""Reports: records as terminal output, log lines and JSON."""
