"""Access to Redis; no other room imports redis."""
