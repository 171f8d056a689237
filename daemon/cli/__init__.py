"""The command line: one module for each group of commands, `main` puts them together."""
