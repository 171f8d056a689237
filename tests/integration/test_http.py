"""A real controller process and a real Redis, asked over HTTP while two applications report."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from integration import common
from unit.daemon.fakes import World

from rechannel.conf.loader import load
from rechannel.wire.redis.store import Store
from testbed.redis_server import RedisServer, free_port

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]
PATIENCE = 60.0 * float(os.environ.get("RECHANNEL_TEST_PATIENCE", "1"))  # seconds
until = functools.partial(common.until, seconds=60.0)


@pytest.fixture
def config(server: RedisServer, tmp_path: Path) -> Path:
    more = f"""
timeout = 0.9
[controller]
lease = 6
observe = 0.2
listen = "127.0.0.1:{free_port()}"
"""
    return common.configured(tmp_path, server, more)


def started(config: Path) -> subprocess.Popen[str]:
    sentence = [sys.executable, "-m", "rechannel", "controller", "--config", str(config)]
    return subprocess.Popen(sentence, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


@pytest.fixture
def running(config: Path) -> Iterator[subprocess.Popen[str]]:
    process = started(config)
    yield process
    process.terminate()
    process.communicate(timeout=PATIENCE)


def test_a_controller_is_scraped(config: Path, running: subprocess.Popen[str]) -> None:
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
        assert 'rechannel_controller_loop_runs_total{cluster="default",loop="observe"}' in text
        assert client.get("/healthz").json()["ok"] is True
        assert client.get("/").status_code == 200
        assert client.post("/metrics").status_code == 405

        second = started(config)
        assert "controller.listen" in second.communicate(timeout=PATIENCE)[1]
        assert second.returncode == 7

        tool = shutil.which("promtool")
        if tool is not None:
            done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    running.terminate()
    running.communicate(timeout=PATIENCE)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{base}/healthz", trust_env=False)
    store.close()
