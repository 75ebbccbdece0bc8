"""The record of a study: identity, journal, and what it says."""
