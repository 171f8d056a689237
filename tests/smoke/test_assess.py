"""Event logs that Spark itself wrote, of an application without Rechannel, plain and in two codecs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.stack import Stack

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.timeout(600)]
PARTITIONS, BATCHES = 6, 14
SCRIPT = f"""
import time
from testbed.counting import count_by_key, numbers
from testbed.driver import end_application, open_session, read_plan, start_query

directory, conf = read_plan()
spark = open_session(conf)
durations = {{}}
counts = count_by_key(numbers(spark, 4000), pause_ms=30)
query = start_query(counts, "counts", directory, lambda frame, _: frame.collect(), "0 seconds")
while query.isActive and len(durations) < {BATCHES}:
    for progress in query.recentProgress:
        durations[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
    time.sleep(0.2)
end_application(directory, spark, {{"counts": query}}, None, durations=durations)
"""


@pytest.mark.parametrize(
    ("codec", "rolling"),
    [
        ("zstd", True),
        pytest.param("", False, marks=pytest.mark.slow),
        pytest.param("lz4", False, marks=pytest.mark.slow),
    ],
)
def test_a_log_of_spark_is_assessed(codec: str, rolling: bool, stack: Stack, tmp_path: Path) -> None:
    logs, directory, name = tmp_path / "logs", tmp_path / "driver", f"assess-{codec or 'plain'}"
    logs.mkdir()
    directory.mkdir()
    conf = stack.spark_conf(name, 1, 2) | {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": logs.as_uri(),
        "spark.eventLog.rolling.enabled": str(rolling).lower(),
        "spark.eventLog.compress": str(bool(codec)).lower(),
        "spark.eventLog.compression.codec": codec or "zstd",
    }
    (directory / "plan.json").write_text(json.dumps(conf))
    script = directory / "app.py"
    script.write_text(SCRIPT)
    driver = stack.start_driver(name, [str(script), str(directory)])
    stack.end_driver(name)
    assert driver.popen.returncode == 0, driver.log_tail(40)
    result = json.loads((directory / "result.json").read_text())
    assert result["exceptions"] == {}
    page = tmp_path / "page.html"
    code, document = stack.cli("assess", str(logs), "--html", str(page), patience=120)
    assert code in (0, 3), document
    (application,) = document["applications"]
    assert (application["name"], application["notes"]) == (name, [])
    (query,) = application["queries"]
    print(json.dumps({key: query[key] for key in ("sentence", "unevenness", "lost_share", "residual", "even", "best")}))
    assert query["name"] == "counts"
    assert query["batches"] >= BATCHES // 2
    durations = [seconds / 1000 for number, seconds in result["durations"].items() if int(number) >= BATCHES // 2]
    assert query["seconds"] == pytest.approx(sum(durations) / len(durations), rel=0.25)
    assert abs(query["residual"]) < 0.15
    assert len(query["executors"]) == 2
    assert [stage["partitions"] for stage in query["stages"]] == [PARTITIONS]
    assert "stateful operators: stateStoreSave" in query["notes"]
    assert page.read_text().count("<svg") == 2
