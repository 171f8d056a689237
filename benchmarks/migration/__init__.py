"""Cost of moving partitions of a running query, compared with a restart of the query.

A real standalone cluster with Redis, agents and controller; the same input in every phase; variants alternate.
"""
