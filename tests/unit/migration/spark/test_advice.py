"""Log lines at attach on what Spark itself may do to the queries."""

from __future__ import annotations

import atexit
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from rechannel.conf.settings import Settings
from rechannel.migration.link import loop
from rechannel.migration.link.loop import Link
from rechannel.migration.spark.compatibility import BYPASS


@pytest.mark.parametrize(("threshold", "times"), [("200", 1), ("0", 0)])
def test_attach_logs_once_that_spark_may_lose_rows(monkeypatch, threshold, times):
    adapter = SimpleNamespace(
        application="app", version="4.3.0", setting=lambda key, default: threshold if key == BYPASS else default
    )
    link = Link()
    monkeypatch.setattr(loop, "LinkCycle", Mock())
    monkeypatch.setattr(link, "_run", lambda cycle, on_end: None)
    monkeypatch.setattr(atexit, "register", lambda function: function)
    with capture_logs() as lines:
        link.start(adapter, Settings(), on_end=lambda *_: None)
    advice = [line for line in lines if line["event"] == "a setting of Spark is worth a change"]
    assert len(advice) == times
    assert all(line["log_level"] == "info" and BYPASS in line["sentence"] for line in advice)
