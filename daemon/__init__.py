"""The controller and the command line.

What may live here: scheduling, leases, requests and replies, what is kept in memory between two decisions, tables for
people and JSON for programs. Decisions themselves are pure and live in `policies` and `migration.plan`; this package
gathers their facts (``snapshot``, ``observed``: pure too), asks them, and publishes the answer. No part imports it.
"""
