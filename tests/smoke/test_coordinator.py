"""Spark's register of state stores: many stores of several operators are steered and read back by one call each."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.spark
STORES = 2 * 12 * 2  # operators, partitions, names
SCRIPT = """
import json, sys, uuid
from pyspark.sql import SparkSession
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.coordinator import StoreId
from rechannel.migration.spark.gateway import LinkError
from rechannel.wire.messages import ExecutorInfo

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
adapter = SparkAdapter(spark)
coordinator, client = adapter.coordinator, adapter.gateway._gateway._gateway_client
sent, send = [], client.send_command
client.send_command = lambda *arguments, **options: sent.append("") or send(*arguments, **options)
run, names = str(uuid.uuid4()), ("default", "left-keyToNumValues")
stores = [StoreId("file:/a b/\\u00fc,1/state", run, o, p, n) for o in (0, 7) for p in range(12) for n in names]
executors = [
    ExecutorInfo(executor=str(3 * number), host=f"my_host-{number}", cores=1, added=0.0)
    for number in range(len(stores))
]

def counted(function, *arguments):
    before = len(sent)
    return function(*arguments), len(sent) - before

def failure(function, *arguments):
    try:
        function(*arguments)
    except LinkError as error:
        return str(error)

answer = {"before": coordinator.locations(stores)}
answer["steer one"] = counted(coordinator.steer, list(zip(stores, executors))[:1])
answer["read one"] = counted(coordinator.locations, stores[:1])
answer["one"] = coordinator.locations(stores)
answer["steer"] = counted(coordinator.steer, list(zip(stores, executors)))
answer["read"] = counted(coordinator.locations, stores)
answer["snapshots"] = coordinator.latest_snapshots(stores) if adapter.reports_snapshots else [-1] * len(stores)
state = spark._jvm.org.apache.spark.sql.execution.streaming.state
ref = spark._jsparkSession.streams().stateStoreCoordinator()
its_run = spark._jvm.java.util.UUID.fromString(run)
ids = [state.StateStoreId(store.checkpoint, store.operator, store.partition, store.store) for store in stores]
answer["by itself"] = [ref.getLocation(state.StateStoreProviderId(item, its_run)).toString() for item in ids]
answer["no such run"] = failure(coordinator.locations, [StoreId("a", "none", 0, 0, "default")])
answer["no such method"] = failure(coordinator._functions.compose, "notThere")
ref.stop()
answer["stopped"] = failure(coordinator.steer, list(zip(stores, executors)))
print("answer", json.dumps(answer))
adapter.close()
"""


def test_many_stores_are_steered_and_read_back_by_as_many_calls_as_one() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.split("answer ")[1])
    assert answer["before"] == [""] * STORES
    assert answer["one"] == ["0"] + [""] * (STORES - 1), "no other store"
    assert answer["read"][0] == [str(3 * number) for number in range(STORES)]
    assert answer["by itself"] == [f"Some(executor_my_host-{number}_{3 * number})" for number in range(STORES)]
    assert answer["snapshots"] == [-1] * STORES
    calls = {name: answer[name][1] for name in ("steer", "steer one", "read", "read one")}
    assert set(calls.values()) <= {2}, calls
    assert "Invalid UUID" in answer["no such run"]
    assert answer["no such method"] == "this Spark lacks a method we need: notThere"
    assert answer["stopped"].startswith("org.apache.spark.SparkException"), "not what the function makes of it"
