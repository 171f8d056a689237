"""What the placement policies make of generated situations, and how long they take; writes ``docs/policies.md``."""
