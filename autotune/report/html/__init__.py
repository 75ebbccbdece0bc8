"""Report of a study as one HTML file: no scripts, no network, text from outside always escaped."""
