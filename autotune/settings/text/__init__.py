"""The text of a YAML file: where each value stands, and how it is changed there."""
