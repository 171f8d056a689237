"""What every policy reads: cluster, workload, streams, placement."""
