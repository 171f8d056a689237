"""Lines of Spark's event log, parsed into events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.monitors.spark import events
from unit.monitors import spark_lines as lines


def test_a_task_is_read_with_its_state_and_its_times():
    event = events.parse(lines.task_end(1, 3, "2", task=9))
    assert isinstance(event, events.TaskEnded)
    row = event.row
    assert (row.task, row.partition, row.executor) == (9, 3, "2")
    assert (row.run, row.cpu, row.fetch_wait, row.commit, row.python) == (0.9, 0.4, 0.1, 0.25, 0.3)
    assert (row.rows_in, row.rows_out, row.bytes_local, row.bytes_remote, row.bytes_out) == (5, 6, 10, 20, 40)
    assert (row.state_rows, row.state_bytes, row.state_size) == (30, 4096, 1024)


@pytest.mark.parametrize("text", [b"", b"{", b'{"Event":"SparkListenerTaskEnd"}', b"\xff", b"[1]", b'{"Event":"X'])
def test_another_line_is_an_event_error(text):
    with pytest.raises(events.EventError):
        events.parse(text)


@pytest.mark.parametrize("update", [b"[]", b"1e400", b'"many"'])
def test_a_metric_that_is_no_number_is_an_event_error(update):
    line = lines.task_end(1, 3, "2", task=9)
    with pytest.raises(events.EventError):
        events.parse(line.replace(b'"Update":"30"', b'"Update":' + update))


@given(st.binary(max_size=200))
def test_no_bytes_raise_another_error(text):
    try:
        events.parse(text)
    except events.EventError:
        return


def test_other_events_are_skipped():
    assert events.parse(b'{"Event":"SparkListenerBlockManagerAdded","Timestamp":1}') is None


def test_the_beginning_of_a_log():
    lines = [
        b'{"Event":"SparkListenerLogStart","Spark Version":"4.0.1"}',
        b'{"Event":"SparkListenerApplicationStart","App Name":"clicks","App ID":"app-1","Timestamp":5,"User":"spark"}',
        b'{"Event":"SparkListenerEnvironmentUpdate","Spark Properties":{"spark.task.cpus":"2"},"Classpath Entries":{}}',
    ]
    assert [events.parse(line) for line in lines] == [
        events.LogStarted("4.0.1"),
        events.ApplicationStarted("clicks", "app-1"),
        events.EnvironmentUpdated({"spark.task.cpus": "2"}),
    ]


def test_progress_has_the_name_the_trigger_and_the_operators():
    line = (
        b'{"Event":"org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent","progress":{"id":"q",'
        b'"runId":"r","name":"clicks","timestamp":"2026-03-01T10:00:00.250Z","batchId":7,"durationMs":{},"sources":[],'
        b'"stateOperators":[{"operatorName":"dedupe","numRowsTotal":3,"numShufflePartitions":6}]}}'
    )
    event = events.parse(line)
    assert isinstance(event, events.QueryProgressed)
    assert (event.name, event.triggered) == ("clicks", 1772359200.25)
    assert event.operators == (events.StateOperator(name="dedupe", partitions=6),)
    unnamed = events.parse(line.replace(b'"clicks"', b"null").replace(b"2026-03-01T10", b"yesterday"))
    assert isinstance(unnamed, events.QueryProgressed)
    assert (unnamed.name, unnamed.triggered) == ("", 0.0)
