"""Benchmarks: policies on real and simulated clusters, workloads, Nexmark, predictions and scale."""
