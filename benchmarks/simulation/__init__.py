"""Simulations beyond the size of one machine: many executors, long hours, and another engine.

* ``engine``: discrete events of micro-batches on executors; ``control`` lets the shipped policies and planner act on it
* ``calibration``: fits the engine to measured batches and states its error on the others
* ``fluid_engine``, ``migration_paper``: a record-at-a-time engine as a fluid, and the paper's experiment on it
* ``large``: a thousand executors with a hundred thousand partitions; ``fleet``: the load on Redis and the controller
* ``report``, ``plots``: the section of the page and its plots
"""
