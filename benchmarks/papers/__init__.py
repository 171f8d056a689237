"""Models of the migration literature, for comparison; no part of the product."""
