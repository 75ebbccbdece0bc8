"""Sections of the page, each as a JSON-ready part of its state."""
