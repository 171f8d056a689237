"""Partitions of a restarted query run on their last executors: nearly all in its first batch, all in its second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.spark_cluster import QUICK_CHECKPOINTS
from testbed.stack import Stack
from tests.soak.restarts import placements

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.timeout(900)]
PARTITIONS, RESTARTS, BATCHES = 12, 10, 3
FIRST = 0.95  # of the partitions, in the first batches of all restarts taken together


@pytest.mark.parametrize(
    "available_now",
    [pytest.param(False, id="back-to-back"), pytest.param(True, id="available-now", marks=pytest.mark.slow)],
)
def test_restarted_partitions_run_where_they_ran_last(available_now: bool, stack: Stack, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    spark = stack.cluster.conf(executor_cores=1) | {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.driver.memory": "600m",
        **QUICK_CHECKPOINTS,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    plan = {"spark": spark, "restarts": RESTARTS, "batches": BATCHES, "available_now": available_now}
    driver = stack.start_module("tests.soak.restarts", tmp_path / "driver", plan, f"restarts-{available_now}")
    stack.end_driver(driver.name)
    assert driver.popen.returncode == 0, driver.log_tail(40)
    result = json.loads((tmp_path / "driver" / "result.json").read_text())
    assert (result["problem"], result["failures"]) == ("", 0)
    (log,) = events.iterdir()
    with log.open() as text:
        runs = list(placements(json.loads(line) for line in text).values())
    assert len(runs) == RESTARTS + 1
    before = runs[0][max(runs[0])]
    assert len(before) == PARTITIONS and len(set(before.values())) == len(stack.cluster.specs)
    first, late = 0, []
    for number, run in enumerate(runs[1:], start=1):
        one, two, *_ = (run[batch] for batch in sorted(run))
        first += sum(one[partition] == executor for partition, executor in before.items())
        if two != before:
            late.append((number, {p: (before[p], two.get(p)) for p in before if two.get(p) != before[p]}))
        before = run[max(run)]
    print(json.dumps({"first": first, "of": RESTARTS * PARTITIONS, "late": len(late)}))
    assert late == [], "restarts whose second batch has partitions elsewhere: (where they ran last, where they ran)"
    assert first >= FIRST * RESTARTS * PARTITIONS, f"{first} of {RESTARTS * PARTITIONS} in the first batch"
