"""The default policy ``adaptive`` and its search."""
