"""Model of cluster, workload, streams and placement that every policy reads."""
