"""What the link says of its application, put together from what its parts know."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rechannel import __version__
from rechannel.migration.spark import compatibility
from rechannel.migration.spark.adapter import ActiveQuery, PlannedOperator
from rechannel.monitors.spark.task_table import StatefulStageFinished, TaskTable
from rechannel.wire.messages import Operator, QueryState, StatefulStage


@dataclass
class StageStores:
    """What is known of a stateful stage: its operators with their stores, once its plan was read."""

    partitions: int
    operators: list[tuple[PlannedOperator, list[str]]]

    @cached_property
    def size(self) -> int:
        """Number of partitions, by the plan: a job may run a part of them only."""
        return max((item.partitions for item, _ in self.operators), default=self.partitions)


def query_state(
    query: ActiveQuery,
    table: TaskTable,
    stages: Mapping[tuple[str, int], StageStores],
    snapshots: Callable[[str, int, int], list[int]],
    unlike_stages: Mapping[tuple[str, int], str],
) -> QueryState:
    """Return what a report shows of a query; ``stages`` by run and stage, ``snapshots`` of run, stage, partitions.

    ``unlike_stages``: why a stage, by run and number, cannot be moved.
    """
    found = []
    numbers = sorted(table.stages.get(query.query, ()))
    for ordinal in numbers:
        placement = table.placement[query.query, ordinal]
        known = stages.get((query.run, ordinal))
        operators = [
            Operator(operator=item.operator, name=item.name, stores=names)
            for item, names in (known.operators if known else [])
        ]
        size = max(known.size if known else 0, len(placement))
        where = placement + [""] * (size - len(placement))
        lag = snapshots(query.run, ordinal, size)
        found.append(
            StatefulStage(stage=ordinal, partitions=size, operators=operators, placement=where, snapshot_lag=lag)
        )
    return QueryState(
        query=query.query,
        run=query.run,
        name=query.name,
        batch=table.last_batch.get(query.query, -1),
        active=True,
        stages=found,
        problem=query.problem or next((text for n in numbers if (text := unlike_stages.get((query.run, n)))), ""),
        batch_started=table.began(query.query),
        interval=query.interval,
    )


def unlike(seen: StatefulStageFinished, operators: Sequence[tuple[PlannedOperator, list[str]]]) -> str:
    """Say why a stage whose tasks are not the partitions of its operators cannot be moved."""
    sizes = ", ".join(f"{item.name} has {item.partitions}" for item, _ in operators)
    return (
        f"stateful stage {seen.stage} runs {seen.partitions} tasks, but {sizes} partitions: a coalesce or a union "
        "behind the operator puts several of them into one task; put a repartition in between to have it moved"
    )


def operators_placed(
    query: ActiveQuery, table: TaskTable, stages: Mapping[tuple[str, int], StageStores]
) -> dict[int, list[str]]:
    """Return where each operator's partitions ran last; empty as long as a stage of the query is not known."""
    found: dict[int, list[str]] = {}
    for ordinal in table.stages.get(query.query, ()):
        placement, known = table.placement[query.query, ordinal], stages.get((query.run, ordinal))
        if known is None or known.size != len(placement):
            return {}
        found.update({item.operator: list(placement) for item, _ in known.operators})
    return found


def environment(setting: Callable[[str, str], str]) -> dict[str, str]:
    """Return the release of the link, its Python, and the Spark settings that matter (`compatibility.told`)."""
    return {"rechannel": __version__, "python": platform.python_version(), **compatibility.told(setting)}


def problems(
    lasting: Iterable[str], *, garbage: int, lost_events: int, healed: int, dropped: int, releasing: str
) -> list[str]:
    """Return what is wrong, in plain words."""
    sentences = list(lasting)
    if garbage:
        sentences.append(f"{garbage} lines of the event stream could not be read")
    if lost_events:
        sentences.append(
            f"Spark's listener bus dropped {lost_events} events of the event stream; what they would have told was "
            "read off Spark's own state. Raise spark.scheduler.listenerbus.eventqueue.rechannel.capacity if it goes on"
        )
    elif healed:
        sentences.append(f"{healed} events of the event stream were lost, and read off Spark's own state instead")
    if dropped:
        sentences.append(f"{dropped} messages were dropped: too many while Redis was away, or too large")
    if releasing:
        sentences.append(releasing)
    return sentences
