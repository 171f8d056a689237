"""Workloads of the live comparison: streaming queries whose input follows from the number of a batch."""
