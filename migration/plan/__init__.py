"""Planning: from a proposed placement to permitted moves. Pure.

* ``laws``: what a migration must keep, and the moves that keep them
* ``gate``: the predicted gain against the predicted cost
* ``cost``: what a migration adds to the batches
* ``schedule``: the moves that may share a batch
"""
