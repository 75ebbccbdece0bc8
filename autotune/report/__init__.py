"""Terminal output, log lines, JSON and HTML reports."""
