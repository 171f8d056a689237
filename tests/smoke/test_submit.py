"""`rechannel submit` with a script that knows nothing of it, on a real cluster and a real Redis."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import venv
from collections import Counter
from pathlib import Path

import pytest

from rechannel.conf.loader import load
from rechannel.wire import keys
from rechannel.wire.redis.store import Store
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer
from testbed.spark_cluster import StandaloneCluster, WorkerSpec

pytestmark = [pytest.mark.spark, pytest.mark.redis]
ROOT = Path(__file__).parents[2]
PATIENCE = 300.0


def test_an_unmodified_script_is_attached_reports_and_counts_exactly(tmp_path: Path):
    text = [f"a b c{number % 5} d{number % 3}" for number in range(30)]
    (tmp_path / "in").mkdir()
    for number, line in enumerate(text):
        (tmp_path / "in" / f"{number}.txt").write_text(line + "\n")
    with ProcessGroup(tmp_path / "logs") as group:
        redis = RedisServer(group).start()
        config = tmp_path / "rechannel.toml"
        config.write_text(f'[redis]\nurl = "{redis.url}"\n[link]\ndirectory = "{tmp_path / "link"}"\n')
        with StandaloneCluster(group, tmp_path / "cluster", [WorkerSpec("127.0.0.74", 2, 1024, None)]) as cluster:
            # The driver's Python has nothing that the link needs.
            venv.create(tmp_path / "bare", symlinks=True)
            python = {"PYSPARK_DRIVER_PYTHON": str(tmp_path / "bare" / "bin" / "python")}
            environment = {**cluster.driver_environment(), **python, "PYTHONPATH": str(ROOT / "src")}
            environment.pop("RECHANNEL_CONFIG", None)
            command = [sys.executable, "-m", "rechannel", "submit", "--config", str(config)]
            for key, value in {**cluster.conf(executor_cores=2), "spark.sql.shuffle.partitions": "4"}.items():
                command += ["--conf", f"{key}={value}"]
            script = Path(__file__).with_name("words.py")
            command += [str(script), *(str(tmp_path / name) for name in ("in", "out.json", "stop"))]
            with (tmp_path / "stdout").open("w") as out, (tmp_path / "stderr").open("w") as err:
                process = subprocess.Popen(command, env=environment, stdout=out, stderr=err)
            try:
                store = Store(load(config, {}).redis, "default")
                deadline = time.monotonic() + PATIENCE
                report = None
                while report is None or not any(query.stages for query in report.body.queries):
                    tail = (tmp_path / "stderr").read_text()[-3000:]
                    assert process.poll() is None, f"ended too early\n{tail}"
                    assert time.monotonic() < deadline, f"no report\n{tail}"
                    time.sleep(0.5)
                    names = store.applications(0.0)
                    report = store.get(keys.REPORT, names[0]) if names else None
                store.close()
                (tmp_path / "stop").touch()
                assert process.wait(PATIENCE) == 3, (tmp_path / "stderr").read_text()[-3000:]
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        assert report.body.name == "words.py"
        assert [query.name for query in report.body.queries] == ["words"]
        assert json.loads((tmp_path / "out.json").read_text()) == Counter(" ".join(text).split())
        # spark-submit itself puts what Python writes to standard error there, the link's lines too.
        assert any(line.startswith("counted ") for line in (tmp_path / "stdout").read_text().splitlines())
        assert list((tmp_path / "link").iterdir()) == [], "the link ended, and left nothing behind"
        redis.close()
