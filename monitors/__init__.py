"""Monitors: the agent on every node, and the reader of Spark's own event log.

They read processes, files and events and turn them into the messages of `rechannel.wire`. They decide nothing, move
nothing, and use no Spark API: a bad process or file is counted and skipped.
"""
