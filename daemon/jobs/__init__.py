"""Scheduled jobs: back-off, health, watchdog, plans that take long."""
