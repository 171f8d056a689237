"""Result of an assessment: one document for programs, tables and the page.

Times are seconds since the epoch (UTC), durations seconds of one batch, shares parts of a batch.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rechannel.wire.version import __version__


class Verdict(StrEnum):
    """Whether moving partitions is worth it for a query."""

    YES = "yes"
    NO = "no"
    UNCLEAR = "unclear"
    NOT_ASSESSABLE = "not assessable"


class Limit(StrEnum):
    """Limit of the best placement of a stage, short of an even one."""

    NONE = ""
    HOT_PARTITION = "hot partition"
    TOO_FEW_PARTITIONS = "too few partitions"


class StageAssessment(msgspec.Struct, frozen=True, kw_only=True):
    """A stateful stage.

    ``busiest`` and ``best`` are the seconds until its last task is done, now and under the best placement;
    ``even_share`` those of its work divided over all cores. ``unevenness``: work of the busiest executor over the mean.
    ``hottest`` is the partition with most work, ``hottest_seconds`` what it takes alone.
    """

    stage: int
    partitions: int
    unevenness: float
    busiest: float
    best: float
    even_share: float
    hottest: int
    hottest_seconds: float
    limit: Limit = Limit.NONE
    sentence: str = ""


class ExecutorWork(msgspec.Struct, frozen=True, kw_only=True):
    """Stateful work of a query on an executor, in seconds of all its cores together."""

    executor: str
    host: str
    now: float
    even: float
    best: float


class PredictedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted batch under another placement.

    ``saved`` is the predicted share of the batch, ``least`` its lower bound at 95 % confidence (negative: it may become
    longer), ``moves`` the partitions of the query that change their executor.
    """

    seconds: float
    saved: float
    least: float
    moves: int


class TimedBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch: start of its trigger, seconds and rows."""

    start: float
    seconds: float
    rows: int


class QueryAssessment(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming query.

    ``batches`` between ``since`` and ``until`` were assessed, ``seconds`` is their mean. ``unevenness``: work of the
    busiest executors of all stateful stages over the mean. ``lost``: seconds by which the last executor is done later
    than with the work divided over all cores. ``residual``: share by which the replay of the present placement differs
    from the measured batches.
    """

    query: str
    name: str
    verdict: Verdict
    sentence: str
    batches: int = 0
    since: float = 0.0
    until: float = 0.0
    seconds: float | None = None
    unevenness: float | None = None
    lost: float | None = None
    lost_share: float | None = None
    residual: float | None = None
    even: PredictedBatch | None = None
    best: PredictedBatch | None = None
    stages: list[StageAssessment] = []
    executors: list[ExecutorWork] = []
    timeline: list[TimedBatch] = []
    notes: list[str] = []


class ApplicationAssessment(msgspec.Struct, frozen=True, kw_only=True):
    """An application; ``notes``: what its log lacks, and what that prevents."""

    log: str
    application: str
    name: str
    spark_version: str
    queries: list[QueryAssessment]
    notes: list[str] = []


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """All applications.

    ``min_gain``: the least share of a batch that is worth moving; ``skipped``: files that are no event log, a sentence
    each.
    """

    applications: list[ApplicationAssessment]
    min_gain: float
    skipped: list[str] = []
    rechannel: str = __version__

    @property
    def verdicts(self) -> set[Verdict]:
        """The verdicts of all queries."""
        return {query.verdict for application in self.applications for query in application.queries}


def change(saved: float) -> str:
    """Return the change of a batch of which a share is saved: ``-12%``, ``+3%``, ``0%``."""
    percent = round(-100 * saved)
    return f"{percent:+d}%" if percent else "0%"
