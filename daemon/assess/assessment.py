"""Assessment of event logs: from files to the verdict on each query.

Each application is read line by line, and its newest batches become the snapshot that the controller would decide on.
Policy, fewest moves, replay, laws and gate are those of a decision, with the default settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from rechannel.conf.settings import Settings
from rechannel.daemon.assess.files import EventLog, EventLogError, LogLines, find_logs
from rechannel.daemon.assess.period import AssessedPeriod, assess_period
from rechannel.daemon.assess.recording import EndlessLogError, QueryRecord, Recording
from rechannel.daemon.assess.result import ApplicationAssessment, Assessment, QueryAssessment, TimedBatch, Verdict
from rechannel.monitors.spark import events
from rechannel.wire.printable import query_name, with_noun

DEFAULT_BATCHES = 32
_GARBAGE = 100  # unreadable lines without an event, after which a file is no event log
_NEEDED: dict[type, tuple[str, str]] = {
    events.ExecutorAdded: ("SparkListenerExecutorAdded", "the executors and their cores are unknown"),
    events.JobStarted: ("SparkListenerJobStart", "the batches and their stages are unknown"),
    events.TaskEnded: ("SparkListenerTaskEnd", "the work of partitions and their executors are unknown"),
    events.QueryProgressed: ("StreamingQueryListener$QueryProgressEvent", "the ends of batches are unknown"),
}


def assess(paths: Sequence[Path], batches: int = DEFAULT_BATCHES) -> Assessment:
    """Assess the event logs at some paths, by the newest ``batches`` of each query.

    A path is a file, a directory of a rolled log, or a directory that holds several applications' logs. Raises
    EventLogError if a path cannot be read as an event log.
    """
    settings, skipped = Settings(), []
    applications = []
    for log in find_logs(paths):
        try:
            applications.append(_assess_log(log, batches, settings))
        except EventLogError as error:
            if log.named:
                raise
            skipped.append(str(error))
    return Assessment(applications=applications, min_gain=settings.gate.min_gain, skipped=skipped)


def _assess_log(log: EventLog, batches: int, settings: Settings) -> ApplicationAssessment:
    recording, lines = Recording(batches), LogLines(log)
    notes = list(log.notes)
    try:
        for line in lines:
            recording.add(line)
            if recording.unreadable >= _GARBAGE and not recording.counts:
                break
    except EndlessLogError as error:
        notes.append(f"read up to there alone: {error}")
    if not recording.counts:
        reason = f": {lines.notes[0]}" if lines.notes else ""
        raise EventLogError(f"{log.parts[0]}: has no event of Spark{reason}")
    recording.finish()
    return ApplicationAssessment(
        log=log.name,
        application=recording.application or log.name,
        name=recording.name,
        spark_version=recording.version,
        queries=_queries(recording, settings),
        notes=[*notes, *lines.notes, *_gaps(recording)],
    )


def _gaps(recording: Recording) -> list[str]:
    """Return what the log lacks, and what that prevents."""
    notes = []
    excluded = recording.properties.get("spark.eventLog.excludedPatterns", "")
    setting = f" (spark.eventLog.excludedPatterns is {excluded})" if excluded else ""
    if not recording.queries:
        notes.append("the log has no streaming query")
    for kind, (name, effect) in _NEEDED.items():
        if not recording.counts[kind] and recording.queries:
            notes.append(f"the log has no {name}{setting}: {effect}")
    if not recording.version:
        notes.append("the beginning of the log is missing: executors that came in it are unknown")
    if recording.unreadable:
        notes.append(f"{with_noun(recording.unreadable, 'line')} could not be read")
    if recording.other_queries:
        left_out = with_noun(recording.other_queries, "batch")
        notes.append(f"there are too many queries: {left_out} of some were passed over")
    return notes


def _queries(recording: Recording, settings: Settings) -> list[QueryAssessment]:
    """Assess each query by its chosen period, with the queries that ran in it."""
    assessed: dict[str, AssessedPeriod] = {}
    for query, period in recording.chosen.items():
        other = next((it for it in assessed.values() if it.period is period), None)
        assessed[query] = other or assess_period(period, recording, settings)
    results = []
    for query, record in recording.queries.items():
        result = assessed[query].queries[query] if query in assessed else _without_batches(record, recording)
        timeline = [TimedBatch(*batch) for batch in record.timeline]
        notes = [*result.notes]
        if 0 < record.measured < record.committed:
            missing = record.committed - record.measured
            notes.append(f"{missing:,} of {with_noun(record.committed, 'batch')} have no tasks in the log")
        results.append(msgspec.structs.replace(result, timeline=timeline, notes=notes))
    return results


def _without_batches(record: QueryRecord, recording: Recording) -> QueryAssessment:
    reason = "no batch of it has both its end and its tasks in the log"
    if record.query in recording.dropped:
        reason = "its batches had no room in memory beside those of other queries"
    elif not record.committed and recording.counts[events.QueryProgressed]:
        reason = "it committed no batch"
    return QueryAssessment(
        query=record.query,
        name=query_name(record.query, record.name),
        verdict=Verdict.NOT_ASSESSABLE,
        sentence=f"not assessable: {reason}",
    )
