"""Placements and decision times of the policies on generated situations; writes ``docs/policies.md``."""
