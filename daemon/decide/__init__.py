"""Pure stages from a request and a snapshot to a decision: no clock, thread, logger or store."""
