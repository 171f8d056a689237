"""The agent process on each node: processes, shuffle files, executors' logs, windows."""
