"""Measures of workloads and placements: cost, queueing, stream classes, forecasts."""
