"""Parts of the link's report on its application."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable

from rechannel.migration.link.snapshot_lag import SnapshotLag
from rechannel.migration.link.stages import Stages
from rechannel.migration.spark import compatibility
from rechannel.migration.spark.adapter import ActiveQuery
from rechannel.monitors.spark.task_table import TaskTable
from rechannel.wire.messages import Operator, QueryState, StatefulStage
from rechannel.wire.version import __version__


def query_state(query: ActiveQuery, table: TaskTable, stages: Stages, lag: SnapshotLag) -> QueryState:
    """Return what a report shows of a query."""
    numbers = sorted(table.stages.get(query.query, ()))
    mismatches = (stages.mismatches.get((query.run, number), "") for number in numbers)
    return QueryState(
        query=query.query,
        run=query.run,
        name=query.name,
        batch=table.last_batch.get(query.query, -1),
        active=True,
        stages=[_stage_state(query, number, table, stages, lag) for number in numbers],
        problem=query.problem or next(filter(None, mismatches), ""),
        batch_started=table.batch_start(query.query),
        interval=query.interval,
        pool=table.pools.get(query.query, ""),
    )


def _stage_state(query: ActiveQuery, number: int, table: TaskTable, stages: Stages, lag: SnapshotLag) -> StatefulStage:
    placement = table.placement[query.query, number]
    stage = stages.mapped.get((query.run, number))
    operators = [
        Operator(operator=item.operator, name=item.name, stores=names)
        for item, names in (stage.operators if stage else [])
    ]
    size = max(stage.partitions if stage else 0, len(placement))
    return StatefulStage(
        stage=number,
        partitions=size,
        operators=operators,
        placement=placement + [""] * (size - len(placement)),
        snapshot_lag=lag.stage_lags(query.run, number, size),
    )


def operator_placement(query: ActiveQuery, table: TaskTable, stages: Stages) -> dict[int, list[str]]:
    """Return the executors of each operator's partitions; empty until all stages are mapped."""
    result: dict[int, list[str]] = {}
    for number in table.stages.get(query.query, ()):
        placement, stage = table.placement[query.query, number], stages.mapped.get((query.run, number))
        if stage is None or stage.partitions != len(placement):
            return {}
        result.update({item.operator: list(placement) for item, _ in stage.operators})
    return result


def environment(setting: Callable[[str, str], str]) -> dict[str, str]:
    """Return the releases of link and Python, and the reportable Spark settings."""
    settings = compatibility.reportable_settings(setting)
    return {"rechannel": __version__, "python": platform.python_version(), **settings}


def problem_sentences(
    problems: Iterable[str], *, garbage: int, lost_events: int, healed: int, dropped: int
) -> list[str]:
    """Return the problems of the link, a sentence each.

    ``problems``: what the parts of the link noticed, "" for nothing; ``garbage``: unreadable lines; ``lost_events``:
    events that Spark's bus dropped; ``healed``: events read from Spark's state instead; ``dropped``: messages not sent.
    """
    sentences = [problem for problem in problems if problem]
    if garbage:
        sentences.append(f"{garbage} lines of the event stream could not be read")
    if lost_events:
        sentences.append(
            f"Spark's listener bus dropped {lost_events} events of the event stream; the missing information was "
            "read from Spark's own state. Raise spark.scheduler.listenerbus.eventqueue.rechannel.capacity if it goes on"
        )
    elif healed:
        sentences.append(f"{healed} events of the event stream were lost, and were read from Spark's own state instead")
    if dropped:
        sentences.append(f"{dropped} messages were dropped: too many while Redis was away, or too large")
    return sentences


def highest_epoch(*accepted: tuple[int, str]) -> tuple[int, list[str]]:
    """Of epochs and senders of what was accepted, return the highest epoch and its senders."""
    highest = max(epoch for epoch, _ in accepted)
    return highest, sorted({sender for epoch, sender in accepted if epoch == highest and sender})
