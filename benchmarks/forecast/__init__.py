"""Value of a forecast on loads that change in known ways: ``python -m benchmarks.forecast``."""
