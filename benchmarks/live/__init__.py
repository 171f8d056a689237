"""The live comparison: Spark as it is, every policy, on one real cluster, through the same events."""
