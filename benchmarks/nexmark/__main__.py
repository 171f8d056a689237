"""``python -m benchmarks.nexmark``: run Nexmark's queries on a Spark, measure them, and audit their output."""

from __future__ import annotations

import sys

from benchmarks.nexmark.queries import IMPOSSIBLE, QUERIES, workload
from benchmarks.workloads.__main__ import main

if __name__ == "__main__":
    sys.exit(main("benchmarks.nexmark", {name: workload(name) for name in QUERIES}, IMPOSSIBLE))
