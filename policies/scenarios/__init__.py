"""Workloads to try policies on without a cluster, and the comparison of policies on them."""
