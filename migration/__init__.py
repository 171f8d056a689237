"""Migration of partitions: the plan, the moves, and the link in the driver.

`plan` (pure, in the controller) turns a policy's proposal into permitted moves, their order and their cost; `link` (in
the Spark driver) reconciles what is wanted with what is observed. Nothing here imports the daemon, and importing this
package imports no Spark.
"""
