"""Text of a YAML file: the place of each value, and changes of single values there."""
