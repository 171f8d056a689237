"""Model of cluster, workload, shuffles and placement that every policy reads."""
