"""What a forecast is worth on loads that change in known ways: ``python -m benchmarks.forecast``."""
