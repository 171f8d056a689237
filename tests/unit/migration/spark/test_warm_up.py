"""Executors that are warmed, and jobs that fail or hang; tests/smoke runs the job itself."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from rechannel.migration.spark.gateway import LinkError
from rechannel.migration.spark.warm_up import _LONGEST as LONGEST
from rechannel.migration.spark.warm_up import ExecutorWarmUp, run_warm_up
from rechannel.wire.messages import ExecutorInfo


def executors(*names: str) -> dict[str, ExecutorInfo]:
    return {name: ExecutorInfo(executor=name, host="a", cores=1, added=0.0) for name in names}


class Spark:
    """Jobs that last until they are let go or canceled."""

    def __init__(self) -> None:
        self.jobs: list[tuple[set[str], bool]] = []
        self.groups: list[str] = []
        self.canceled = 0
        self.now = 0.0
        self.begun, self.ended = threading.Event(), threading.Event()
        self.fails = False
        self.warm_up = ExecutorWarmUp(self.run, self.cancel, lambda: self.now)

    def run(self, joined: list[ExecutorInfo], python: bool, group: str) -> set[str]:
        self.groups.append(group)
        self.begun.set()
        names = {info.executor for info in joined}
        self.jobs.append((names, python))
        if self.fails:
            raise LinkError("the job was canceled")
        assert self.ended.wait(30)
        return names

    def cancel(self, group: str) -> None:
        assert self.begun.wait(30)
        assert group == self.groups[-1]
        self.canceled += 1

    def advance(self, *names: str, operators: tuple[str, ...] = ("StateStoreSave",)) -> None:
        self.warm_up.advance(executors(*names), lambda: operators)

    def let_go(self) -> None:
        self.ended.set()
        assert self.warm_up._thread is not None
        self.warm_up._thread.join(30)


@pytest.fixture
def spark() -> Iterator[Spark]:
    made = Spark()
    yield made
    made.ended.set()


def test_only_executors_that_join_are_warmed_and_those_of_one_moment_together(spark: Spark) -> None:
    spark.advance("0", "1")
    assert spark.jobs == [], "the first batches warm these"
    spark.advance("0", "1", "2", "3")
    spark.advance("0", "1", "2", "3", "4")
    spark.let_go()
    spark.advance("0", "1", "2", "4")
    spark.let_go()
    spark.advance("0", "1", "2", "4")
    assert spark.jobs == [({"2", "3"}, False), ({"4"}, False)]
    assert not spark.canceled
    assert len(set(spark.groups)) == 2, "one of each job"


@pytest.mark.parametrize(
    ("operators", "python"),
    [(("FlatMapGroupsInPandasWithState",), True), (("StateStoreSave", "TransformWithStateInPySpark"), True)],
)
def test_python_workers_are_started_where_operators_use_them(
    spark: Spark, operators: tuple[str, ...], python: bool
) -> None:
    spark.advance("0")
    spark.advance("0", "1", operators=operators)
    spark.let_go()
    assert spark.jobs == [({"1"}, python)]


def test_without_stateful_queries_nothing_is_warmed(spark: Spark) -> None:
    spark.advance("0")
    spark.advance("0", "1", operators=())
    spark.advance("0", "1")
    assert spark.jobs == []


def test_a_job_that_takes_too_long_is_canceled_and_again_if_that_does_not_help(spark: Spark) -> None:
    spark.advance("0")
    spark.advance("0", "1")
    for now, canceled in ((LONGEST - 1, 0), (LONGEST, 1), (LONGEST + 1, 1), (2 * LONGEST, 2)):
        spark.now = now
        spark.advance("0", "1")
        assert spark.canceled == canceled
    spark.warm_up.end()
    assert spark.canceled == 3
    spark.let_go()
    spark.warm_up.end()
    assert spark.canceled == 3, "it is over"


def test_a_cancel_that_fails_is_no_matter(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise LinkError("the JVM is busy")

    monkeypatch.setattr(spark.warm_up, "_cancel", fail)
    spark.advance("0")
    spark.advance("0", "1")
    spark.now = LONGEST
    spark.advance("0", "1")
    spark.let_go()


def test_a_job_that_fails_is_not_tried_again(spark: Spark) -> None:
    spark.fails = True
    spark.advance("0")
    spark.advance("0", "1")
    spark.let_go()
    spark.advance("0", "1")
    assert spark.jobs == [({"1"}, False)]


@pytest.mark.parametrize("pooled", [True, False])
def test_the_connection_of_a_warming_thread_is_closed_though_the_job_fails(pooled: bool) -> None:
    """With pinned threads PySpark opens one for each thread and closes none: that of an ended thread would leak."""
    own, other = Mock(), Mock()
    connections = deque([other, own] if pooled else [other])
    client = SimpleNamespace(get_thread_connection=lambda: own, deque=connections)
    context = Mock(_gateway=SimpleNamespace(_gateway_client=client))
    context.setJobGroup.side_effect = OSError("the JVM ended")
    with pytest.raises(LinkError):
        run_warm_up(SimpleNamespace(sparkContext=context), [], False, "group")
    own.close.assert_called_once_with()
    assert list(connections) == [other] and not other.close.called


def test_a_script_without_pinned_threads_is_left_alone() -> None:
    context = Mock(_gateway=SimpleNamespace(_gateway_client=SimpleNamespace()))
    with pytest.raises(LinkError, match="PYSPARK_PIN_THREAD"):
        run_warm_up(SimpleNamespace(sparkContext=context), [], False, "group")
    assert not context.setJobGroup.called
