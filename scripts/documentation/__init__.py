"""Documentation site: reference pages generated from the code, screens from running commands, and the build."""
