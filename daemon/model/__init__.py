"""Models of applications, made from their messages. Pure, except for the collector's reads."""
