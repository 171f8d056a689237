"""Events of customers as JSON text, read and added up in a Python function that keeps a customer's totals as state.

In the papers' counts a task's time hardly depends on how many rows it gets: what is done for a row is little beside
starting the task and committing its state. Here each row is read by Python, and few customers have most of them, so
partitions differ in what they cost the more, the more rows there are. It is what `applyInPandasWithState` is used for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupStateTimeout

from benchmarks.workloads.base import Feed, Output, Workload

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

ACTIONS = ("view", "search", "cart", "buy")
CENTS = 10_000  # the most that anything costs
_COLUMNS = ("batch", "customer", "events", "spent", "largest")
_OUT = ", ".join(f"{name} long" for name in _COLUMNS)
_STATE = "events long, spent long, largest long"


def _events(feed: Feed) -> DataFrame:
    number = F.col("number")
    action = F.get(
        F.array(*map(F.lit, ACTIONS)), F.pmod(F.xxhash64(number, F.lit(21)), F.lit(len(ACTIONS))).cast("int")
    )
    cents = F.pmod(F.xxhash64(number, F.lit(22)), F.lit(CENTS))
    return feed.rows().select(
        "batch", "number", feed.key().alias("customer"), action.alias("action"), cents.alias("cents")
    )


def _reader() -> Callable[..., Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for a customer's rows of a batch.

    Made in here so that it travels by value: the executors have none of this package.
    """
    columns, bought = list(_COLUMNS), ACTIONS[-1]

    def read(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        import json

        import pandas as pd

        events, spent, largest = state.get if state.exists else (0, 0, 0)
        batch = -1
        for frame in frames:
            batch = int(frame["batch"].iloc[0])
            for text in frame["event"].tolist():
                event = json.loads(text)
                events += 1
                if event["action"] == bought:
                    cents = event["item"]["cents"]
                    spent += cents
                    largest = max(largest, cents)
        state.update((events, spent, largest))
        yield pd.DataFrame([(batch, key[0], events, spent, largest)], columns=columns)

    return read


def totals(feed: Feed) -> list[Output]:
    """Put out a customer's totals after each batch that has one of its events; the replay has no Python in it."""
    rows = _events(feed)
    if feed.streaming:
        item = F.struct((F.col("number") % CENTS).alias("id"), F.lit("as shown").alias("name"), "cents")
        event = F.to_json(F.struct("number", "customer", "action", item.alias("item"))).alias("event")
        frame = (
            rows.select("batch", "customer", event)
            .groupBy("customer")
            .applyInPandasWithState(_reader(), _OUT, _STATE, "append", GroupStateTimeout.NoTimeout)
        )
    else:
        cents = F.when(F.col("action") == ACTIONS[-1], F.col("cents")).otherwise(0)
        batches = rows.groupBy("batch", "customer").agg(
            F.count(F.lit(1)).alias("events"), F.sum(cents).alias("spent"), F.max(cents).alias("largest")
        )
        so_far = Window.partitionBy("customer").orderBy("batch")
        added = ((F.max if name == "largest" else F.sum)(name).over(so_far).alias(name) for name in _COLUMNS[2:])
        frame = batches.select("batch", "customer", *added)
    return [Output("python-totals", frame, "append")]


WORKLOADS = [
    Workload(
        "python-totals",
        "Events as JSON, read and added up by customer in a Python function with state; few customers have most.",
        "own: state in Python",
        totals,
        rows=150_000,
        keys=64,
    )
]
