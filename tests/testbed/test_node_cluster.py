from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from testbed.network import HUB, why_not
from testbed.node_cluster import NodeCluster, NodeSpec
from testbed.processes import ProcessGroup
from testbed.quota import available
from testbed.spark_cluster import SparkOptions

pytestmark = [pytest.mark.root, pytest.mark.spark, pytest.mark.timeout(240)]


def ping(url: str) -> bool:
    with redis.Redis.from_url(url, socket_connect_timeout=2) as client:
        return bool(client.ping())


JOB = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession

conf, result = map(Path, sys.argv[1:])
builder = SparkSession.builder
for key, value in json.loads(conf.read_text()).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
total = spark.range(0, 200_000, 1, 4).repartition(4, "id").selectExpr("sum(id)").collect()[0][0]
result.write_text(str(total))
spark.stop()
"""


@pytest.mark.slow
def test_a_job_runs_on_nodes_that_are_real_to_it(skip_loudly: Callable[[str], None], tmp_path: Path) -> None:
    skip_loudly(why_not() or ("" if available() else available().reason))
    speeds = {"node1": 0.8, "node2": 0.4}
    nodes = [NodeSpec(name, quota=quota, link_mbit=100.0, memory_mb=640) for name, quota in speeds.items()]
    conf, result = tmp_path / "conf.json", tmp_path / "result.json"
    with ProcessGroup(tmp_path / "logs") as group:
        cluster = NodeCluster(group, tmp_path / "cluster", nodes, SparkOptions(512))
        with cluster:
            own = {
                "spark.driver.memory": "512m",
                "spark.cores.max": "2",
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both executors have tasks
                "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            }
            conf.write_text(json.dumps(cluster.spark.conf(executor_cores=1) | own))
            driver = cluster.start_driver("driver", [sys.executable, "-c", JOB, str(conf), str(result)])
            cluster.start_redis()
            before = cluster.counters()
            places = {}
            while driver.alive():
                for executor in cluster.spark.executors():
                    with contextlib.suppress(OSError):  # it has just ended
                        space = Path(f"/proc/{executor.pid}/ns/net").readlink()
                        places.setdefault(
                            executor.host, (space, executor.pid in cluster.spark.quotas[executor.host].pids())
                        )
                if len(places) == len(nodes) and not cluster.statement().nodes["node1"]["quota"]:
                    for node in nodes:
                        cluster.set_quota(node.name, node.limit)
                time.sleep(0.2)
            assert result.exists(), driver.log_tail()
            assert int(result.read_text()) == 199_999 * 100_000

            spaces = {}
            for part in ("node1", "node2", HUB):
                with cluster.inside(part):
                    spaces[part] = Path("/proc/thread-self/ns/net").readlink()
            assert len(set(spaces.values())) == 3
            assert places == {cluster.address(name): (spaces[name], True) for name in ("node1", "node2")}
            after = cluster.counters()
            for name in ("node1", "node2"):
                # About half of the rows are shuffled to the other node, and they compress badly.
                assert after[name].sent - before[name].sent > 100_000
                assert after[name].received - before[name].received > 100_000

            statement = cluster.statement()
            assert statement.network.startswith("namespaces, 100 Mbit/s")
            assert "quota: node1 0.8, node2 0.4 cores" in statement.cpu
            cluster.set_quota("node1", 0.1)
            assert cluster.statement().nodes["node1"]["quota"] == 0.1
            assert cluster.statement().nodes["node1"]["link_mbit"] == 100.0

            with cluster.inside("node1"):
                assert ping(cluster.redis_url())
            assert cluster.redis is not None
            assert ping(cluster.redis.url)

            held = cluster.spark.quotas[cluster.address("node2")].path
            cluster.remove("node2", kill=True)
            assert not held.exists()
            assert set(cluster.counters()) == set(cluster.statement().nodes) == {"node1"}
        assert not group.processes
