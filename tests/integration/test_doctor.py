"""The doctor on a real Redis, with real users of every role."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from integration.common import make_users, run, run_json
from unit.daemon.fakes import APP, batch, query, report, window

from rechannel.conf.loader import load
from rechannel.migration.link.report import environment
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.keys import Role
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import make_keys
from testbed.redis_server import RedisServer
from testbed.stack import write_config

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]
NODE = "127.0.0.2"

Files = dict[Role | None, Path]


def write(directory: Path, server: RedisServer, user: str, password: Path, name: str, **signing: str) -> Path:
    sections = {"redis": {"username": user, "password_file": str(password)}, "agent": {"node": NODE}}
    return write_config(directory, f"unix://{server.socket_path}", {**sections, "signing": signing}, f"{name}.toml")


@pytest.fixture(scope="module")
def files(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A configuration for a user of each role, and for the administrator (None)."""
    directory = tmp_path_factory.mktemp("doctor")
    return make_users(directory, lambda user, password, role: write(directory, server, user, password, role or "admin"))


@pytest.fixture
def store(files: Files) -> Iterator[Store]:
    store = Store(load(files[None], {}).redis, "default")
    client: Any = store._redis
    for key in client.scan_iter("*"):
        client.delete(key)
    yield store
    store.close()


def diagnosed(path: Path, code: int = 0) -> dict[str, list[dict[str, Any]]]:
    result: dict[str, list[dict[str, Any]]] = {}
    for item in run_json("doctor", "--config", path, code=code)["checks"]:
        result.setdefault(item["check"], []).append(item)
    return result


@pytest.mark.parametrize("role", Role)
def test_every_role_is_told_its_rights_and_nothing_is_written(files: Files, store: Store, role: Role) -> None:
    client: Any = store._redis
    sees = role in (Role.VIEWER, Role.OPERATOR)
    result = diagnosed(files[role], code=4 if sees else 0)
    (rights,) = result["redis-rights"]
    assert rights["verdict"] == "ok", rights
    assert f"has the role {role}: " in rights["sentence"]
    assert list(client.scan_iter("*")) == []
    assert ("controller" in result) == sees, "the cluster takes a viewer's rights"


def test_the_administrator_is_warned_and_redis_is_described(files: Files, store: Store) -> None:
    result = diagnosed(files[None], code=4)
    assert result["redis-rights"][0]["verdict"] == "warning"
    for check in ("redis", "redis-version", "redis-role", "redis-memory", "clock", "clock-parts"):
        assert result[check][0]["verdict"] == "ok", result[check]
    assert result["controller"][0]["verdict"] == "failed"
    assert "no application" in result["links"][0]["sentence"]


def test_a_user_that_lacks_rights_and_one_that_has_too_many(files: Files, store: Store) -> None:
    client: Any = store._redis
    user = "rechannel-default-viewer"
    client.execute_command("ACL", "SETUSER", user, "+xadd", "~rechannel:{default}:requests")
    try:
        (rights,) = diagnosed(files[Role.VIEWER], code=4)["redis-rights"]
        assert (rights["verdict"], "requests" in rights["sentence"]) == ("warning", True)
        client.execute_command("ACL", "SETUSER", user, "-zrangebyscore")
        (rights, *_) = diagnosed(files[Role.VIEWER], code=5)["redis-rights"]
        assert (rights["verdict"], "read applications" in rights["sentence"]) == ("failed", True)
    finally:
        password = files[None].parent / "viewer.password"
        run("acl", "add-role", "viewer", "--config", files[None], "--password-file", password)


def test_a_wrong_password(files: Files, server: RedisServer, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("wrong\n")
    password.chmod(0o600)
    (result,) = diagnosed(write(tmp_path, server, "", password, "wrong"), code=5)["redis"]
    assert (result["verdict"], "refuses this user" in result["sentence"]) == ("failed", True)


def test_eviction_is_a_failure(files: Files, store: Store) -> None:
    client: Any = store._redis
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", str(2**30))
    try:
        assert diagnosed(files[Role.VIEWER], code=5)["redis-eviction"][0]["verdict"] == "failed"
    finally:
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")
    assert diagnosed(files[Role.VIEWER], code=4)["redis-eviction"][0]["verdict"] == "ok"


@pytest.mark.parametrize(
    ("agents", "silent"),
    [(["worker-1"], []), (["127.0.0.2", "127.0.0.3"], []), (["127.0.0.2"], ["worker-1"])],
    ids=["an agent beside the pods", "one in each pod", "one in a pod"],
)
def test_pods_are_measured_from_inside_or_outside(
    files: Files, store: Store, agents: list[str], silent: list[str]
) -> None:
    now, author = time.time(), EnvelopeFactory("default", "test")
    message = report([query(["0", "1"])], count=2)
    pods = [msgspec.structs.replace(info, node="worker-1") for info in message.executors]
    store.register_application(APP, now)
    message = msgspec.structs.replace(message, executors=pods)
    store.put(keys.REPORT, APP, author.envelope(message, ttl=60, application=APP))
    usages = [window(e).executors[0] for e in range(2)]
    for name in agents:
        seen = [usage for usage in usages if name in (usage.host, "worker-1")]
        body = msgspec.structs.replace(window(0, end=now), node=name, executors=seen)
        store.append(keys.WINDOWS, name, author.envelope(body, ttl=60))
    findings = diagnosed(files[Role.VIEWER], code=4)["agents"]
    assert [item["subject"] for item in findings if item["verdict"] == "failed"] == silent


def test_a_cluster_with_faults_is_seen_through(files: Files, store: Store) -> None:
    """One node has an agent whose clock is 60 s ahead, the others have none; the link is of an older release."""
    now = time.time()
    arguments = {"spark.speculation": "true", "spark.task.cpus": "2"}
    logged = environment(lambda key, default: arguments.get(key, default)) | {"rechannel": "0.0.1"}
    message = msgspec.structs.replace(report([query(["0", "1"])]), environment=logged)
    link = EnvelopeFactory("default", f"link@{APP}")
    store.register_application(APP, now)
    store.put(keys.REPORT, APP, link.envelope(message, ttl=60, application=APP))
    store.append(keys.BATCHES, APP, link.envelope(batch(9, ["0", "1"], end=now), ttl=60, application=APP))
    fast = EnvelopeFactory("default", f"agent:{NODE}", lambda: time.time() + 60)
    store.append(keys.WINDOWS, NODE, fast.envelope(window(0, end=now + 60), ttl=60))
    result = diagnosed(files[Role.VIEWER], code=4)
    assert [item["subject"] for item in result["clock-parts"]] == [f"agent:{NODE}"]
    assert "60.0 s ahead" in result["clock-parts"][0]["sentence"]
    assert "the keys of 4 nodes and 1 applications take up to" in result["redis-memory"][1]["sentence"]
    assert [item["subject"] for item in result["agents"]] == ["127.0.0.3", "127.0.0.4", "127.0.0.5"]
    assert "0.0.1" in result["links"][0]["sentence"]
    assert [item["verdict"] for item in result["spark-settings"]] == ["warning"]
    assert result["spark-cores"][0]["verdict"] == "warning"
    assert "the longest stateful stage takes 0.1 s" in result["spark-locality"][0]["sentence"]
    store.put(keys.REPORT, APP, msgspec.structs.replace(link.envelope(message, ttl=60, application=APP), schema=99))
    assert diagnosed(files[Role.VIEWER], code=4)["links"][0]["verdict"] == "failed"


def test_keys_that_do_not_match(files: Files, server: RedisServer, tmp_path: Path) -> None:
    private, _ = make_keys(tmp_path / "one")
    _, public = make_keys(tmp_path / "other")
    signing = {"private_key_file": str(private), "public_key_file": str(public)}
    result = diagnosed(write(tmp_path, server, "", files[None].parent / "admin", "keys", **signing), code=7)
    assert result["signing-keys"][0]["verdict"] == "failed"
    assert result["redis"][0]["verdict"] == "ok"


def test_agents_that_nobody_knows_are_listed_for_who_may_list_keys(files: Files, store: Store) -> None:
    now = time.time()
    link = EnvelopeFactory("default", f"link@{APP}")
    store.register_application(APP, now)
    store.put(keys.REPORT, APP, link.envelope(report([query(["0", "1"])]), ttl=60, application=APP))
    for node in (NODE, "stranger"):
        author = EnvelopeFactory("default", f"agent:{node}")
        for end in (now - 10, now - 5, now):
            body = window(0, end=end) if node == NODE else msgspec.structs.replace(window(0, end=end), executors=[])
            store.append(keys.WINDOWS, node, author.envelope(body, ttl=60))
    twin = EnvelopeFactory("default", f"agent:{NODE}")  # another agent of that node
    for end in (now - 9, now - 4, now + 1):
        store.append(keys.WINDOWS, NODE, twin.envelope(window(0, end=end), ttl=60))
    message = {item["subject"]: item["sentence"] for item in diagnosed(files[None], code=4)["agents"]}
    assert "no application has executors there, only on 127.0.0.2" in message["stranger"]
    assert "127.0.0.2" not in message, "three windows of one and then three of the other do not alternate"
    for number in range(3):
        for author, ahead in ((EnvelopeFactory("default", f"agent:{NODE}"), 0), (twin, 1)):
            end = now + 5 * number + ahead
            store.append(keys.WINDOWS, NODE, author.envelope(window(0, end=end), ttl=60))
    message = {item["subject"]: item["sentence"] for item in diagnosed(files[Role.VIEWER], code=4)["agents"]}
    assert "more than one agent reports for it" in message[NODE]
    assert "stranger" not in message
