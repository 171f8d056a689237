"""Calls into the driver as the adapter makes them, on a driver that is made up."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from rechannel.migration.spark import adapter as module
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.coordinator import StoreId
from rechannel.migration.spark.gateway import LinkError

STORE = StoreId("file:/state", "6f4f5d0e-1c35-4c43-9f0a-0f5c3b2f6a11", 0, 3, "default")


class Conf(dict):
    """The methods of a SparkConf that are called."""

    def clone(self):
        return Conf(self)

    def getAllWithPrefix(self, prefix):  # noqa: N802  Spark's name
        names = [name.removeprefix(prefix) for name in self if name.startswith(prefix)]
        return [SimpleNamespace(_1=lambda name=name: name) for name in names]

    def remove(self, name):
        del self[name]

    def set(self, name, value):
        self[name] = value


@dataclass
class Bus:
    """Spark's listener bus: its queues, and its counters of dropped events by their names."""

    queues: dict[str, list[object]] = field(default_factory=lambda: defaultdict(list))
    drops: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def addToQueue(self, listener, queue):  # noqa: N802  Spark's name
        self.queues[queue].append(listener)

    def drop(self, queue, count):
        self.drops[f"queue.{queue}.numDroppedEvents"] += count

    def metrics(self):
        def counter(name):
            return SimpleNamespace(getCount=lambda: self.drops[name])

        return SimpleNamespace(metricRegistry=lambda: SimpleNamespace(counter=counter))


@dataclass
class Driver:
    conf: Conf
    bus: Bus
    context: MagicMock
    jvm: MagicMock
    adapter: SparkAdapter

    def written(self, directory) -> Conf:
        """Start the event stream; return the settings of its writer."""
        self.adapter.start_event_stream(directory, 1000)
        (call,) = self.jvm.org.apache.spark.scheduler.EventLoggingListener.call_args_list
        return call.args[3]


@pytest.fixture
def driver(monkeypatch) -> Driver:
    gateway, spark, conf, bus = MagicMock(), MagicMock(), Conf(), Bus()
    gateway.share.side_effect = lambda item: item
    monkeypatch.setattr(module, "Gateway", lambda _: gateway)
    monkeypatch.setattr(module, "Watchdog", MagicMock())
    monkeypatch.setattr(module, "EventFilter", lambda *_: SimpleNamespace(listener="listener"))
    spark._jsparkSession.version.return_value = "4.0.0"
    context = spark._jsparkSession.sparkContext.return_value
    context.isStopped.return_value = False
    context.conf.return_value, context.listenerBus.return_value = conf, bus
    return Driver(conf, bus, context, gateway.jvm, SparkAdapter(spark))


# -- the event stream --


def test_the_listener_has_a_queue_of_its_own(driver, tmp_path):
    driver.adapter.start_event_stream(tmp_path, 1000)
    assert driver.bus.queues == {"rechannel": ["listener"]}


def test_drops_of_that_queue_are_counted_and_no_others(driver, tmp_path):
    driver.adapter.start_event_stream(tmp_path, 1000)
    (queue,) = driver.bus.queues
    driver.bus.drop("eventLog", 5)
    assert driver.adapter.dropped_events() == 0
    driver.bus.drop(queue, 3)
    assert driver.adapter.dropped_events() == 3


def test_settings_of_the_users_event_log_are_not_inherited(driver, tmp_path):
    users = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": "hdfs:///logs",
        "spark.eventLog.excludedPatterns": ".*TaskEnd.*",
        "spark.eventLog.compress": "true",
        "spark.eventLog.compression.codec": "zstd",
        "spark.eventLog.buffer.kb": "100000",
        "spark.app.name": "shop",
    }
    driver.conf.update(users)
    written = driver.written(tmp_path)
    own = {name: value for name, value in written.items() if name.startswith("spark.eventLog.")}
    assert own == module._EVENT_LOG | {"spark.eventLog.rolling.maxFileSize": "1000b"}
    assert own["spark.eventLog.compress"] == "false", "the link reads lines"
    assert written["spark.app.name"] == "shop"
    assert driver.conf == users, "the application's own settings stay"


# -- executors and places --


def row(number: int) -> dict[str, object]:
    name = "driver" if number == 0 else str(number)
    executor = {"id": name, "hostPort": f"10.0.0.{number}:4711", "totalCores": 4, "isActive": True}
    attributes = {"RECHANNEL_NODE": "worker-1"} if number == 1 else {}
    return executor | {"addTime": 1_700_000_000_500, "maxMemory": 2**30, "removeTime": None, "attributes": attributes}


def test_a_thousand_executors_are_listed_in_as_many_calls_as_one(driver):
    mapper = driver.jvm.com.fasterxml.jackson.databind.ObjectMapper.return_value
    counts = []
    for many in (1, 1000):
        mapper.writeValueAsString.return_value = json.dumps([row(number) for number in range(many + 1)])
        before = len(driver.jvm.mock_calls) + len(driver.context.mock_calls)
        executors = driver.adapter.executors()
        counts.append(len(driver.jvm.mock_calls) + len(driver.context.mock_calls) - before)
        assert len(executors) == many
    assert counts[0] == counts[1] < 10
    first = executors[0]
    assert (first.executor, first.host, first.node_name, first.cores) == ("1", "10.0.0.1", "worker-1", 4)
    assert (first.added, first.memory) == (1_700_000_000.5, 2**30)


@pytest.mark.parametrize(
    ("option", "executor"),
    [("Some(executor_10.0.0.1_12)", "12"), ("Some(executor_my_host_7)", "7"), ("None", "")],
)
def test_a_place_is_read_off_sparks_answer(driver, option, executor):
    coordinator = driver.adapter.coordinator
    coordinator._locate = function = MagicMock()
    function.bindTo.return_value.invokeWithArguments.return_value = option + "\0None"
    assert coordinator.locations([STORE, STORE]) == [executor, ""]
    assert len(function.mock_calls) == 2, "for any number of stores"


def test_nothing_to_steer_or_to_read_costs_no_call(driver):
    coordinator = driver.adapter.coordinator
    coordinator._locate = coordinator._report = None
    assert coordinator.locations([]) == []
    coordinator.steer([])


@pytest.mark.parametrize(("active", "idle"), [(True, False), (False, True), (None, False)])
def test_a_query_of_any_session_is_idle_while_its_trigger_is_not_active(driver, active, idle):
    session = driver.adapter._session
    running = session.sharedState.return_value.activeStreamingQueries.return_value.get
    if active is None:
        running.return_value = None  # it has ended
    else:
        running.return_value.status.return_value.isTriggerActive.return_value = active
    assert driver.adapter.is_idle(STORE.run) is idle
    session.streams.return_value.get.assert_not_called()  # that has the queries of one session


# -- the end of the session --


@pytest.mark.parametrize(
    ("error", "over"),
    [
        (Py4JNetworkError("the JVM has closed its port", cause=ConnectionRefusedError()), True),
        (Py4JNetworkError("a pause of the garbage collector", cause=TimeoutError()), False),
        (Py4JNetworkError("the connection broke off", cause=ConnectionResetError()), False),
        (Py4JError("Target Object ID does not exist"), False),
    ],
)
def test_a_session_is_over_once_its_jvm_no_longer_listens(driver, error, over):
    driver.context.isStopped.side_effect = error
    assert driver.adapter.is_over is over


def test_a_session_is_over_once_it_is_stopped(driver):
    assert not driver.adapter.is_over
    driver.context.isStopped.return_value = True
    assert driver.adapter.is_over


def test_an_adapter_whose_job_cannot_be_canceled_closes_its_gateway(driver, monkeypatch):
    gateway = driver.adapter.gateway
    monkeypatch.setattr(driver.adapter.warm_up, "end", MagicMock(side_effect=LinkError("the JVM is busy")))
    driver.adapter.close()
    gateway.close.assert_called_once_with()
