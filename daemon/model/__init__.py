"""From messages to the model that is decided on. Pure, but for the collector's reads."""
