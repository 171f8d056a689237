"""Default policy ``adaptive`` and its search."""
