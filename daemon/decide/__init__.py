"""From a snapshot to a decision. Pure: no clock, thread, logger or store."""
