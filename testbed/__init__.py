"""Real processes on one machine: Redis, a standalone Spark cluster, CPU quotas per node; always cleaned up."""
