"""Models of applications from their messages. Pure, except for the collector's reads."""
