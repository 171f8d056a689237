"""The controller and the command line.

What may live here: scheduling, leases, requests and replies, what is kept in memory between two decisions, tables for
people and JSON for programs. ``model`` turns messages into a snapshot, ``decide`` (pure) a snapshot into a decision;
``control`` holds state and publishes. No part imports this package.
"""
