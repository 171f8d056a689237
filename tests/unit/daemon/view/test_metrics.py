"""Metrics: table, documentation, and samples."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rechannel.daemon.control.leadership import Role
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.view import metrics
from rechannel.daemon.view.metrics import Counters
from rechannel.daemon.view.status import (
    ApplicationStatus,
    ControllerView,
    ExecutorStatus,
    LeaderStatus,
    LinkCounters,
    QueryStatus,
    ReadinessStatus,
)
from rechannel.daemon.view.status_builder import ClusterMessages, application_status
from rechannel.migration.moves import AWAITING_BATCH
from rechannel.monitors.node.metrics import TABLE as AGENT_TABLE
from rechannel.wire import metric_samples
from rechannel.wire.codes import MoveReason, MoveState
from unit import sample_messages as samples
from unit.daemon.fake_store import NOW, FakeClock
from unit.daemon.fakes import APP, clocks, query, report, settings
from unit.daemon.model.builders import messages
from unit.daemon.model.test_snapshot import LASTING, TWELVE, disturbed

ROOT = Path(__file__).parents[4]
QUERY = QueryStatus("q", "named", "r", 3, True, "", "", 2.5, 0.4, (), 7, 0.03)
APPLICATION = ApplicationStatus(
    application="app",
    name="job",
    spark_version="4.3.0",
    last_heard=0.0,
    silent=False,
    readiness=ReadinessStatus(True, "ready", "ready"),
    executors=(ExecutorStatus("1", "n1", 2, 5, 0.5), ExecutorStatus("2", "n2", 2, 3)),
    queries=(QUERY, dataclasses.replace(QUERY, batch_seconds=9.0)),
    counters=LinkCounters(landed=4),
)
VIEW = ControllerView(
    at=10.0,
    cluster="c",
    name="me",
    role=Role.LEADING,
    controller=LeaderStatus(epoch=3),
    applications=(APPLICATION,),
    redis_up=True,
)


# Prometheus' client writes labels in the order of their names: application, executor, node; application, name, query.
def scraped(
    view: ControllerView, counters: Counters | None = None, monitor: JobMonitor | None = None
) -> dict[tuple[str, ...], float]:
    clock, registry = FakeClock(), CollectorRegistry()
    monitor = monitor or JobMonitor(clocks(clock))
    registry.register(metrics.ControllerMetrics(lambda: view, monitor, counters or Counters()))
    return {
        (sample.name, *(value for label, value in sample.labels.items() if label != "cluster")): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.labels["cluster"] == view.cluster
    }


def test_the_page_shows_every_metric() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for table in (metrics.TABLE, AGENT_TABLE):
        lines = ["| metric | kind | labels | what it says |", "| --- | --- | --- | --- |"]
        for item in table:
            labels = ", ".join(f"`{label}`" for label in item.labels)
            lines.append(f"| `{item.name}` | {item.kind} | {labels} | {item.text} |")
        assert "\n".join(lines) in page


@pytest.mark.parametrize("item", (*metrics.TABLE, *AGENT_TABLE), ids=lambda item: item.name)
def test_a_name_follows_the_conventions(item: metric_samples.MetricDefinition) -> None:
    assert item.name.startswith("rechannel_")
    assert not any(word in item.name for word in ("_ms", "millis", "percent", "_mb", "_count"))
    assert not {"partition", "move", "decision", "run"} & set(item.labels)
    assert not {"job", "instance", "cluster"} & set(item.labels), "set by Prometheus, and by us for all"
    assert item.text


def test_metric_names_are_unique() -> None:
    names = [item.name for item in (*metrics.TABLE, *AGENT_TABLE)]
    assert len(set(names)) == len(names)


def test_unknown_figures_have_no_sample() -> None:
    result = scraped(VIEW)
    assert result["rechannel_controller_leads",] == 1
    assert result["rechannel_executor_utilization_ratio", "app", "1", "n1"] == 0.5
    assert ("rechannel_executor_utilization_ratio", "app", "2", "n2") not in result
    assert result["rechannel_executor_partitions", "app", "2", "n2"] == 3
    assert result["rechannel_query_snapshot_lag_batches", "app", "named", "q"] == 7
    assert result["rechannel_link_landed_moves_total", "app"] == 4
    assert result["rechannel_moves_in_flight", "planned"] == 0
    assert result["rechannel_query_batch_seconds", "app", "named", "q"] == 9.0, "one series, though it is there twice"


def test_the_last_decision_and_outcome_have_series_by_application() -> None:
    decided = samples.decision(at=5.0, gain=7.0)
    outcome = samples.outcome(batch_after={"q": 2.0})
    view = dataclasses.replace(VIEW, last_decisions={"app": decided}, last_outcomes={"app": outcome})
    result = scraped(view)
    assert result["rechannel_decision_timestamp_seconds", "app"] == 5.0
    assert result["rechannel_decision_gain_seconds", "app"] == 7.0
    assert result["rechannel_migration_batch_seconds", "app", "settled", "named", "q", "measured"] == 2.0


def test_series_of_removed_applications_disappear() -> None:
    gone = dataclasses.replace(VIEW, applications=())
    assert not [key for key in scraped(gone) if "app" in key]


def test_labels_of_counters_are_bounded() -> None:
    counters = Counters()
    for number in range(2000):
        counters.add(metrics.MOVES, "drained", str(number))
    counts = counters.read(metrics.MOVES)
    assert (len(counts), counts["other", "other"]) == (1001, 1000)


def test_counters_are_0_before_their_first_event() -> None:
    counters = Counters()
    counters.add(metrics.MOVES, "abandoned", "deadline")
    counters.add(metrics.DECISIONS, "applied", "pays", "timeout")
    result = scraped(VIEW, counters)
    assert result["rechannel_decisions_total", "pays", "applied", "timeout"] == 1
    assert result["rechannel_moves_total", "deadline", "abandoned"] == 1
    assert result["rechannel_moves_total", "landed", "drained"] == 0
    assert result["rechannel_migrations_total", "regressed"] == 0


def test_ends_of_moves_have_all_states_and_reasons() -> None:
    assert set(metrics._MOVE_ENDS) == set(MoveState) - AWAITING_BATCH
    on_the_way = set(map(MoveReason, ("accepted", "ready", "snapshot-late", "location-set", "location-set-again")))
    assert {reason for reasons in metrics._MOVE_ENDS.values() for reason in reasons} == set(MoveReason) - on_the_way


def test_the_end_of_a_job_that_never_ended_is_its_start() -> None:
    clock = FakeClock()
    monitor = JobMonitor(clocks(clock))
    began = clock()

    def hangs() -> None:
        clock.sleep(9)
        assert scraped(VIEW, monitor=monitor)["rechannel_controller_job_last_end_timestamp_seconds", "follow"] == began

    monitor.add("follow", 1.0, hangs).run()
    result = scraped(VIEW, monitor=monitor)
    assert result["rechannel_controller_job_last_end_timestamp_seconds", "follow"] == began + 9


def test_series_are_bounded_and_any_text_is_a_valid_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_samples, "MAX_SERIES", 3)
    odd = tuple(ExecutorStatus(f'{number}"\n\ud800' + "x" * 999, "n", 1, 1) for number in range(9))
    result = scraped(dataclasses.replace(VIEW, applications=(dataclasses.replace(APPLICATION, executors=odd),)))
    assert len([key for key in result if key[0] == "rechannel_executor_partitions"]) == 3
    assert result["rechannel_controller_series_left_out",] > 0


def test_a_wrong_number_of_labels_is_an_error() -> None:
    with pytest.raises(ValueError, match="labels"):
        metric_samples.MetricSamples(metrics.TABLE, "c").set(metrics.EPOCH, 1, "odd")


def test_the_cause_of_a_slow_executor_is_in_the_status_and_a_label() -> None:
    facts = messages(report([query(TWELVE)]), LASTING, disturbed(throttled=2.0))
    nothing = ClusterMessages((facts,), None, (), (), 0)
    status = application_status(facts, nothing, settings(), NOW, partitions=False)
    slow = status.executors[2]
    assert (slow.slow_cause, slow.speed) == ("throttled", pytest.approx(0.5, rel=0.05))
    assert slow.remark == f"slow (throttled): {slow.slow}"
    assert slow.slow.endswith("its CPU limit of 0.5 cores throttled it for 40% of the time")
    samples = scraped(dataclasses.replace(VIEW, applications=(status,)))
    causes = [labels for labels in samples if labels[0] == "rechannel_executor_slow"]
    assert causes == [("rechannel_executor_slow", APP, "throttled", "2", "127.0.0.4")]
