"""The whole loop on real parts: a running application gets a second node, and its partitions move there by themselves.

Real Redis, a real standalone cluster with two-core executors, agents and controller as processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks.testbed.processes import ProcessGroup
from benchmarks.testbed.redis_server import RedisServer
from benchmarks.testbed.spark_cluster import StandaloneCluster, WorkerSpec
from rechannel.wire.signing import make_keys

pytestmark = [pytest.mark.spark, pytest.mark.redis]
ROOT = Path(__file__).parents[2]
NODES = ("127.0.0.32", "127.0.0.33")
PARTITIONS = 6
PATIENCE = 180.0  # seconds for each stage; a busy box is slow


@dataclass
class Loop:
    """What the test talks to."""

    group: ProcessGroup
    cluster: StandaloneCluster
    redis: RedisServer
    environment: dict[str, str]
    directory: Path

    def start_daemons(self, generation: int) -> None:
        command = [sys.executable, "-m", "rechannel.daemon.cli"]
        self.group.start(f"controller-{generation}", [*command, "controller"], env=self.environment)
        for node in NODES:
            name = f"agent-{node}-{generation}"
            self.group.start(name, [*command, "agent", "--node", node], env=self.environment)

    def commits(self) -> list[int]:
        """The last committed batch of each query, off its checkpoint: needs neither Redis nor anything of ours."""
        found = []
        for name in ("counts", "python"):
            commits = (self.directory / f"checkpoint-{name}" / "commits").iterdir()
            found.append(max((int(path.name) for path in commits if path.name.isdigit()), default=-1))
        return found

    def cli(self, *words: str) -> tuple[int, Any]:
        command = [sys.executable, "-m", "rechannel.daemon.cli", *words, "--json"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not ready():
            self.group.check()
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{item.log_tail(15)}" for name, item in self.group.processes.items())
                pytest.fail(f"{what}: not within {PATIENCE:g} s\n{logs}\n{self.cli('status')}")
            time.sleep(1.0)

    def status(self) -> dict[str, Any]:
        applications = self.cli("status")[1].get("applications", [])
        return applications[0] if applications else {"queries": []}

    def entries(self, kind: str) -> list[dict[str, Any]]:
        found = self.cli("history", "--limit", "1000")[1].get("entries", [])
        return [entry for entry in found if entry["type"] == kind]

    def states(self) -> list[str]:
        return [entry["after"] for entry in self.entries("move")]


@pytest.fixture(scope="module")
def loop(tmp_path_factory) -> Iterator[Loop]:
    directory = tmp_path_factory.mktemp("loop")
    private, public = make_keys(directory / "keys")
    with ProcessGroup(directory / "logs") as group:
        redis = RedisServer(group).start()
        config = directory / "rechannel.toml"
        config.write_text(
            f"""
            [cluster]
            name = "smoke"
            [redis]
            url = "{redis.url}"
            [signing]
            private_key_file = "{private}"
            public_key_file = "{public}"
            [agent]
            sample = 0.5
            window = 2.0
            [link]
            directory = "{directory / "link"}"
            [reschedule]
            mode = "apply"
            timeout = 5.0
            batches = 2
            [gate]
            cooldown = 5.0
            move_cost = 0.1
            """
        )
        environment = {**os.environ, "RECHANNEL_CONFIG": str(config), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        cluster = StandaloneCluster(group, directory / "cluster", [WorkerSpec(NODES[0], 2, 1024, None)])
        with cluster:
            loop = Loop(group, cluster, redis, environment, directory)
            loop.start_daemons(1)
            conf = cluster.conf(executor_cores=2) | {"spark.sql.shuffle.partitions": str(PARTITIONS)}
            (directory / "conf.json").write_text(json.dumps(conf))
            app = [sys.executable, str(Path(__file__).with_name("app.py"))]
            app += [str(directory / name) for name in ("conf.json", "result.json", "stop")]
            group.start(
                "app",
                app,
                env=cluster.driver_environment()
                | {"RECHANNEL_CONFIG": str(config), "PYTHONPATH": environment["PYTHONPATH"]},
            )
            yield loop
        redis.close()


def test_a_new_executor_gets_its_share_while_the_queries_run(loop: Loop):
    def placements() -> list[dict[str, list[int]]]:
        return [stage["placement"] for query in loop.status()["queries"] for stage in query["stages"]]

    loop.wait("both queries run", lambda: [set(placement) for placement in placements()] == [{"0"}, {"0"}])
    loop.cluster.add_worker(WorkerSpec(NODES[1], 2, 1024, None))
    loop.wait("moves are drained", lambda: loop.states().count("drained") >= 4)
    loop.wait(
        "partitions are spread",
        lambda: all(len(placement.get(name, [])) >= 2 for placement in placements() for name in ("0", "1")),
    )
    assert "timeout" in {entry["trigger"] for entry in loop.entries("decision")}, "the controller fires by itself"
    loop.wait("old copies are killed", lambda: "killed" in loop.states())
    evidence = [entry["evidence"] for entry in loop.entries("move") if entry["after"] == "killed"]
    assert any("Closed StateStoreProviderId" in text for text in evidence), "by the executor's own word"


def test_operators_can_pause_resume_and_ask(loop: Loop):
    assert loop.cli("pause", "--reason", "a test")[0] == 0
    assert loop.cli("status")[1]["controller"]["paused"] is True
    code, answer = loop.cli("rebalance", "--apply", "--force")
    assert code != 0, answer
    assert loop.cli("resume")[0] == 0
    assert loop.cli("status")[1]["controller"]["paused"] is False
    code, answer = loop.cli("plan")
    assert code in (0, 3, 4), answer  # 4: a migration is still running
    code, answer = loop.cli("plan", "--application", "app-unknown")
    assert code == 1
    assert "app-" in answer["error"]


def test_moving_failed_no_task_and_garbage_is_counted(loop: Loop):
    counters = loop.status()["counters"]
    assert counters["landed"] >= 4
    assert (counters["failed_tasks"], counters["rejected_messages"]) == (0, 0)
    application = loop.status()["application"]
    client = redis.Redis(unix_socket_path=str(loop.redis.socket_path))
    client.set(f"rechannel:{{smoke}}:app:{application}:desired", '{"schema":1,"signature":"\u00e9"}')
    client.close()
    loop.wait("the garbage is counted", lambda: loop.status()["counters"]["rejected_messages"] > 0)


def test_all_of_ours_may_be_killed_and_the_queries_go_on(loop: Loop):
    epoch = loop.cli("status")[1]["controller"]["epoch"]
    before = loop.commits()
    for name in [name for name in loop.group.processes if name.startswith(("controller", "agent"))]:
        loop.group.kill(name)
    loop.redis.kill()
    assert loop.cli("status")[0] == 5, "Redis is away"
    loop.wait("batches are committed", lambda: all(a >= b + 2 for a, b in zip(loop.commits(), before, strict=True)))
    loop.redis.start()
    assert loop.cli("rebalance", "--apply", "--wait", "1")[0] == 6, "nobody leads"
    loop.start_daemons(2)
    loop.wait("an emptied Redis is filled again", lambda: loop.status().get("readiness", {}).get("ready", False))
    assert loop.cli("status")[1]["controller"]["epoch"] > epoch, "an old leader would be refused"


def test_a_lost_executor_is_replaced_and_gets_its_share_again(loop: Loop):
    lost = {row["executor"] for row in loop.status()["executors"] if row["node"] == NODES[1]}
    loop.cluster.kill_executor(NODES[1])

    def settled() -> bool:
        status = loop.status()
        names = {row["executor"] for row in status.get("executors", [])}
        held = [set(stage["placement"]) for query in status["queries"] for stage in query["stages"]]
        return len(names) == 2 and not names & lost and all(placement == names for placement in held)

    loop.wait("both executors hold partitions of both queries", settled)


def test_the_output_is_exact_and_nothing_is_left_behind(loop: Loop):
    (loop.directory / "stop").touch()
    loop.wait("the application ends", lambda: not loop.group.processes["app"].alive())
    result = json.loads((loop.directory / "result.json").read_text())
    assert result["exceptions"] == {}
    assert (result["problem"], result["failures"]) == ("", 0)
    for name, counts in result["counts"].items():
        rows = (result["batches"][name] + 1) * 4000
        expected = Counter(value * value % 97 for value in range(rows))
        assert {int(key): count for key, count in counts.items()} == dict(expected), name
    assert result["left_behind"] is False
