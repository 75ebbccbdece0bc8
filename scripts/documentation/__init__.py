"""The documentation site: pages made from the tables of the code, screens made by running their commands, the build."""
