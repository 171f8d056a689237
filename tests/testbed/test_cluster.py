from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from examples.demo.audit import compare, expected_tours, read_sink
from examples.demo.data import open_replay
from examples.demo.feed import Feeder
from examples.demo.queries import Layout
from testbed.processes import ROOT, ProcessGroup
from testbed.quota import available
from testbed.spark_cluster import QUICK_CHECKPOINTS, StandaloneCluster, WorkerSpec

pytestmark = [pytest.mark.spark, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    quota = 64.0 if available() else None
    specs = [WorkerSpec(host, 2, 1024, quota) for host in ("127.0.0.2", "127.0.0.3")]
    directory = tmp_path_factory.mktemp("cluster")
    with ProcessGroup(directory / "logs") as group, StandaloneCluster(group, directory / "cluster", specs) as running:
        yield running


@pytest.mark.slow
def test_the_application_runs_to_the_end_and_its_audit_can_fail(cluster: StandaloneCluster, tmp_path: Path) -> None:
    replay = open_replay(tmp_path / "replay", 1000)
    Feeder(replay, tmp_path / "inbox", tmp_path / "control", rows=250).advance(99)
    own = {"spark.sql.shuffle.partitions": "4", "spark.executorEnv.PYTHONPATH": str(ROOT)}
    conf = cluster.conf() | QUICK_CHECKPOINTS | own
    (tmp_path / "conf.json").write_text(json.dumps(conf))
    command = [sys.executable, "-m", "examples.demo.app", "--root", str(tmp_path)]
    command += ["--conf", str(tmp_path / "conf.json")]
    environment = cluster.driver_environment() | {"PYTHONPATH": str(ROOT)}
    app = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with app:
        seen: set[str] = set()
        groups: set[str] = set()
        while app.poll() is None:
            for executor in cluster.executors():
                seen.add(executor.host)
                if cluster.quotas and executor.pid in cluster.quotas[executor.host].pids():
                    groups.add(executor.host)
            time.sleep(0.3)
    assert app.returncode == 0
    assert seen == {"127.0.0.2", "127.0.0.3"}
    assert groups == (seen if cluster.quotas else set())
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["audit"]["ok"], result
    assert result["restarts"] == 0
    assert result["failed_task_attempts"] == 0
    progress = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert {record["query"] for record in progress} == {"delays", "tours"}
    assert sum(record["rows"] for record in progress) == 2 * 1001

    layout = Layout(tmp_path)
    assert compare("tours", expected_tours(layout), read_sink(layout, "tours")).ok
    victim = next(path for path in sorted(layout.sink("tours").glob("part-*.json")) if path.stat().st_size)
    lines = victim.read_text().splitlines()
    changed = json.loads(lines[0])
    changed["legs"] += 1
    victim.write_text("\n".join([json.dumps(changed), *lines[1:]]) + "\n")
    damaged = compare("tours", expected_tours(layout), read_sink(layout, "tours"))
    assert not damaged.ok
    assert damaged.different == 1
    victim.write_text("")
    lost = compare("tours", expected_tours(layout), read_sink(layout, "tours"))
    assert lost.missing == len(lines)


def test_workers_come_and_go_and_nothing_listens_outside(cluster: StandaloneCluster) -> None:
    cluster.add_worker(WorkerSpec("127.0.0.4", 1, 512))
    assert set(cluster.workers) == {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
    for process in cluster._group.processes.values():
        for connection in psutil.Process(process.pid).net_connections(kind="tcp"):
            assert connection.laddr.ip.removeprefix("::ffff:").startswith("127.0.0."), connection
    cluster.stop_worker("127.0.0.4", kill=True)
    assert set(cluster.workers) == {"127.0.0.2", "127.0.0.3"}
