"""The application of the drill in `sigterm`: one stateful query; every second batch has a slow map task.

``python -m tests.drills.sigterm_app DIRECTORY`` writes every batch as `app` does, and begins a slow one once the file
``go-<batch>`` exists. The map tasks are Spark's alone: an executor that is ended ends its Python workers first, and a
map task that still needs one fails, as it should.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F  # noqa: N812  the name PySpark's own documentation uses

import rechannel
from testbed.counting import count_by_key, numbers
from testbed.driver import end_application, open_session, read_plan, start_query
from tests.drills.app import writer_of

ROWS = 24_000  # of a batch
MAP_TASKS = 3
QUERY = "counts"
SLOW_EVERY = 2  # batches; the last of them is slow
SLOW_S = 5.0  # that the first map task of a slow batch waits before its last row


def writer(directory: Path) -> Callable[[Any, int], None]:
    """Return what the query calls with each of its batches; it returns once the next may begin."""
    write = writer_of(directory / "out" / QUERY)

    def write_and_wait(frame: Any, batch: int) -> None:
        write(frame, batch)
        following = batch + 1
        while is_slow(following) and not any((directory / name).exists() for name in (f"go-{following}", "stop")):
            time.sleep(0.05)

    return write_and_wait


def is_slow(batch: int) -> bool:
    """Whether a map task of the batch waits."""
    return batch % SLOW_EVERY == SLOW_EVERY - 1


def main() -> None:
    """Run the query until the file ``stop`` exists."""
    directory, plan = read_plan()
    spark = open_session(plan["spark"])
    link = rechannel.attach(spark) if plan["attached"] else None
    cycle = SLOW_EVERY * ROWS
    slept = F.reflect(F.lit("java.lang.Thread"), F.lit("sleep"), F.lit(int(SLOW_S * 1000)).cast("long"))
    last_row = F.col("value") % cycle == cycle - MAP_TASKS  # of the first map task of a slow batch
    source = numbers(spark, ROWS, numPartitions=MAP_TASKS)
    rows = source.where(F.coalesce(F.when(last_row, slept), F.lit("")) != "never").select("k")
    # The shuffle is of rows, not of sums: nothing is combined before it.
    frame = count_by_key(rows.repartition("k"))
    query = start_query(frame, QUERY, directory, writer(directory), plan["trigger"])
    while not (directory / "stop").exists() and query.isActive:
        time.sleep(0.2)
    end_application(directory, spark, {QUERY: query}, link)


if __name__ == "__main__":
    main()
