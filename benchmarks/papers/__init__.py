"""Models of the migration literature that the benchmarks compare with; no part of the product."""
