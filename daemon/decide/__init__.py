"""Pure stages from a request and a snapshot to a decision."""
