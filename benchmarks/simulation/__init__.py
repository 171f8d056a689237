"""What cannot be run on one machine, simulated: many executors, long hours, and another engine.

* ``engine``: discrete events of micro-batches on executors; ``control`` lets the shipped policies and planner act on it
* ``calibration``: fits the engine to batches that were measured, and tells how wrong it is on others
* ``storm``, ``paper``: a record-at-a-time engine as a fluid, and the pipelined-migration paper's experiment on it
* ``large``: a thousand executors with a hundred thousand partitions; ``fleet``: what Redis and a controller need then
* ``document``, ``plots``: what is told of it
"""
