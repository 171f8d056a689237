"""Figures of a workload and of a placement: cost, queueing, stream classes, service rates, forecasts."""
