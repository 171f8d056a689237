"""Messages about one application at one moment, and how far its agents cover it. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rechannel.conf.settings import Settings
from rechannel.wire.measurements import AgentWindow, BatchReport, ExecutorUsage
from rechannel.wire.messages import ExecutorInfo, LinkReport

_WINDOWS = 3  # averaged by a decision: batches of a few seconds even out, and a change of the load shows soon
_LISTED_NODES = 5  # silent nodes named in a sentence


@dataclass(frozen=True)
class ApplicationMessages:
    """Messages about one application.

    ``reported_at``: time of its report; ``windows``: by agent; ``queries_since``: time since which the same runs of
    queries are active, as far as it was seen; ``load_since``: time since which the load is the present one, 0 if it is
    not known to have changed; ``oversized``: queries whose batches have too many tasks to be stored as
    often as a decision needs; ``idle``: queries whose batches were left out, as they are of another load.
    """

    application: str
    report: LinkReport
    reported_at: float
    batches: tuple[BatchReport, ...]
    windows: Mapping[str, tuple[AgentWindow, ...]]
    queries_since: float = 0.0
    oversized: frozenset[str] = frozenset()
    load_since: float = 0.0
    idle: frozenset[str] = frozenset()

    @cached_property
    def batches_by_query(self) -> Mapping[str, list[BatchReport]]:
        """Batches of each query in the order of ``batches``; without queries that have none."""
        by_query: dict[str, list[BatchReport]] = {}
        for batch in self.batches:
            by_query.setdefault(batch.query, []).append(batch)
        return by_query

    def batches_of(self, query: str) -> list[BatchReport]:
        """Return the batches of a query that ran a stage, each number once, oldest first."""
        return batches_of(self.batches_by_query.get(query, ()), query)

    def windows_of(self, info: ExecutorInfo) -> list[AgentWindow]:
        """Return the windows of the agents that may report an executor."""
        return [window for name in info.agent_names for window in self.windows.get(name, ())]


@dataclass(frozen=True)
class AgentCoverage:
    """Number of executors with fresh agent figures, and the nodes that hold the others."""

    fresh: int
    silent: tuple[str, ...]


def batches_of(batches: Iterable[BatchReport], query: str) -> list[BatchReport]:
    """Return the batches of a query that ran a stage, each number once, oldest first.

    Batches without input, which Spark runs to close windows and to drop old state, are another kind of batch. They are
    left out unless all are of that kind.
    """
    by_number = {batch.batch: batch for batch in batches if batch.query == query and batch.stages}
    ordered = [by_number[number] for number in sorted(by_number)]
    return [batch for batch in ordered if batch.input_rows] or ordered


def last_batches(messages: ApplicationMessages, query: str, settings: Settings, now: float) -> list[BatchReport]:
    """Return the batches of a query that a decision averages, oldest first.

    These are the batches that ended within the averaged windows, and at least ``reschedule.batches`` where there are
    as many: a slow query has few batches in fifteen seconds, a fast one enough to even out the noise. Batches before a
    change of the load only fill that number up.
    """
    ordered = messages.batches_of(query)
    since = now - averaging_time(settings)
    recent = sum(batch.end >= since and batch.start >= messages.load_since for batch in ordered)
    return ordered[-max(recent, settings.reschedule.batches) :]


def of_present_load(batches: Sequence[BatchReport], load_since: float, least: int) -> Sequence[BatchReport]:
    """Return the batches that began since the load changed, or all where these are too few.

    They alone tell the rows of each partition: one batch of before among three would be a third of the old load.
    """
    present = [batch for batch in batches if batch.start >= load_since]
    return present if len(present) >= max(1, least) else batches


def averaging_time(settings: Settings) -> float:
    """Return the seconds of the windows that a decision averages."""
    return settings.agent.window * _WINDOWS


def max_window_age(settings: Settings) -> float:
    """Return the seconds after which a window is too old: one window more than are averaged."""
    return averaging_time(settings) + settings.agent.window


def fresh_usage(
    messages: ApplicationMessages, settings: Settings, now: float
) -> dict[str, tuple[AgentWindow, ExecutorUsage]]:
    """Return the newest fresh window of each executor, with the executor's usage in it."""
    newest: dict[str, tuple[AgentWindow, ExecutorUsage]] = {}
    oldest_end = now - max_window_age(settings)
    for window in (window for node in messages.windows.values() for window in node if window.end >= oldest_end):
        for usage in window.executors:
            previous = newest.get(usage.executor)
            if usage.application == messages.application and (previous is None or previous[0].end <= window.end):
                newest[usage.executor] = (window, usage)
    return newest


def measure_coverage(executors: Sequence[ExecutorInfo], fresh: Container[str]) -> AgentCoverage:
    """Count the executors with ``fresh`` agent figures, and name the nodes of the others."""
    silent = {info.node_name for info in executors if info.executor not in fresh}
    return AgentCoverage(sum(info.executor in fresh for info in executors), tuple(sorted(silent)))


def reporting_spans(messages: ApplicationMessages, settings: Settings) -> dict[str, tuple[float, float]]:
    """Return the span of time that each executor's agent has reported on.

    It ends one sample early: what was written just before a sample is reported with the next one.
    """
    spans: dict[str, tuple[float, float]] = {}
    for window in (window for node in messages.windows.values() for window in node):
        for usage in window.executors:
            if usage.application == messages.application:
                start, end = spans.get(usage.executor, (window.start, window.end))
                spans[usage.executor] = min(start, window.start), max(end, window.end)
    return {name: (start, end - settings.agent.sample) for name, (start, end) in spans.items()}


def describe_silent_agents(coverage: AgentCoverage) -> str:
    """Name the nodes whose agents are silent, and the effect; "" where all report."""
    if not coverage.silent:
        return ""
    nodes = f"node{'s' if len(coverage.silent) > 1 else ''} {', '.join(coverage.silent[:_LISTED_NODES])}"
    more = f" and {len(coverage.silent) - _LISTED_NODES} more" if len(coverage.silent) > _LISTED_NODES else ""
    where = "any node" if not coverage.fresh else f"{nodes}{more}"
    return f"no agent reports from {where}: the sizes of streams from there are taken as unknown"
