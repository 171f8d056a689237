"""A real controller process and a real Redis, asked over HTTP while two applications report."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from integration.common import PATIENCE, configured, end, start, until
from unit.daemon.fakes import World

from rechannel.conf.loader import load
from rechannel.wire.redis.store import Store
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer, free_port

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


@pytest.fixture
def config(server: RedisServer, tmp_path: Path) -> Path:
    controller = {"lease": 6, "listen": f"127.0.0.1:{free_port()}"}
    return configured(tmp_path, server, {"redis": {"timeout": 0.9}, "controller": controller})


def test_a_controller_is_scraped(config: Path, group: ProcessGroup) -> None:
    running = start(group, "first", "controller", config)
    settings = load(config, {})
    store = Store(settings.redis, settings.cluster.name)
    store._redis.flushall()
    for name in ("app-1", "app-2"):
        World(store, time.time, name).ready()  # type: ignore[arg-type]
    base = f"http://{settings.controller.listen}"
    with httpx.Client(base_url=base, trust_env=False, timeout=30) as client:

        def requested(path: str) -> httpx.Response | None:
            try:
                return client.get(path)
            except httpx.TransportError:
                return None

        until(lambda: (answer := requested("/readyz")) and answer.status_code == 200)
        until(lambda: 'rechannel_executor_partitions{application="app-2"' in client.get("/metrics").text)
        text = client.get("/metrics").text
        assert (
            'rechannel_executor_partitions{application="app-1",cluster="default",executor="0",node="127.0.0.2"} 6.0'
            in text
        )
        assert '\nrechannel_controller_leads{cluster="default"} 1.0\n' in text
        assert 'rechannel_controller_job_runs_total{cluster="default",job_name="observe"}' in text
        assert client.get("/healthz").json()["ok"] is True
        assert client.get("/").status_code == 200
        assert client.post("/metrics").status_code == 405

        second = start(group, "second", "controller", config)
        assert second.popen.wait(PATIENCE) == 7
        assert "controller.listen" in second.log.read_text()

        tool = shutil.which("promtool")
        if tool is not None:
            done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    end(running)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{base}/healthz", trust_env=False)
    store.close()
