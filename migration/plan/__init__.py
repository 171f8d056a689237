"""Policies propose, this package disposes. Pure functions only: no clock, no socket, no Redis, no Spark.

* ``steps``: which moves may happen in the same batch
* ``gate``: whether moving pays
* ``manager``: the laws a migration must keep, and the moves that keep them
"""
