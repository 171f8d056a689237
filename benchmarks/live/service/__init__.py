"""A testbed with known truth: rows that take a known service time, placements whose optimum is computable."""
