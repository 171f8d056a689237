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


@given(st.binary(max_size=200))
def test_no_bytes_raise_another_error(text):
    try:
        events.parse(text)
    except events.EventError:
        return


def test_other_events_are_skipped():
    assert events.parse(b'{"Event":"SparkListenerBlockManagerAdded","Timestamp":1}') is None
