"""What is seen of a running cluster: on every node by the agent, in the driver from Spark's own event stream.

Reads processes, files and events and turns them into the messages of `rechannel.wire`. Decides nothing, moves
nothing, and knows no Spark API: a bad process or file is counted and left aside.
"""
