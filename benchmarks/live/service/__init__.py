"""A testbed with known truth: rows that take a known service time, placements whose optimum is computable.

``python -m benchmarks.live --workload service --seed N --json FILE`` makes one run; ``--report FILE...`` prints a table
of several. `cases` draws a case from the seed, `rows` has its queries and `app` its Spark application; `session` is
the cluster, `run` the order of a run; `truth` has the optimum and the fewest moves, `results` the record, `report` the
table.
"""
