"""What moving partitions of a running query costs, beside what users do today: stop it and start it again.

A real standalone cluster with Redis, agents and controller; the same input in every phase; ways of moving by turns.
"""
