"""Spark's own event log: its files, its events, the task table."""
