"""Users in a real server: an agent's may write its own node's keys, and nothing else."""

from __future__ import annotations

import dataclasses
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from integration.common import PATIENCE, raw, run, run_json, until
from unit.daemon.fakes import window

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from rechannel.daemon.service import run_controller
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.redis.errors import StoreError, StoreRefusedError
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import make_keys
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer, SentinelCluster, ask

pytestmark = [pytest.mark.redis, pytest.mark.timeout(5 * PATIENCE)]
NODE, OTHER = "127.0.0.2", "127.0.0.3"


@pytest.fixture
def settings(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "admin").write_text("geheim\n")
    path = tmp_path / "rechannel.toml"
    path.write_text(f'[redis]\nurl = "unix://{server.socket_path}"\npassword_file = "{tmp_path}/admin"\n')
    monkeypatch.setenv("RECHANNEL_CONFIG", str(path))
    return load(path, {})


def add_node(*arguments: str, code: int = 0) -> Result:
    return run("acl", "add-node", *arguments, code=code)


@pytest.fixture
def agent(settings: Settings, tmp_path: Path) -> Iterator[Store]:
    """The store as the agent of the node opens it."""
    password = tmp_path / "agent"
    answer = json.loads(add_node(NODE, "--password-file", str(password), "--json").stdout)
    assert (answer["lasting"], password.stat().st_mode & 0o777) == (False, 0o600)
    redis = dataclasses.replace(settings.redis, username=answer["user"], password_file=str(password))
    store = Store(redis, settings.cluster.name)
    yield store
    store.close()


def test_it_can_read_its_limits_and_do_nothing_else(agent: Store) -> None:
    envelope = EnvelopeFactory("default", "thief").envelope(window(0), ttl=60)
    for rule, name in ((keys.WINDOWS, OTHER), (keys.EVIDENCE, OTHER), (keys.REQUESTS, ""), (keys.JOURNAL, "app-1")):
        with pytest.raises(StoreRefusedError):
            agent.append(rule, name, envelope)
    assert agent.get(keys.AGENT_LIMITS) is None, "none is written yet, but it may be read"
    for attempt in (
        lambda: agent.put(keys.AGENT_LIMITS, "", envelope),
        lambda: agent.put(keys.DESIRED, "app-1", envelope),
        lambda: agent.put(keys.ORDERS, "", envelope),
        lambda: agent.last(keys.WINDOWS, NODE, 1),
        lambda: agent.get(keys.REPORT, "app-1"),
        lambda: agent.acquire_lease("thief", 10, 0),
        lambda: agent.set_paused(True),
        lambda: agent.set_user("thief", ["on", "+@all", "~*"]),
    ):
        with pytest.raises(StoreRefusedError):
            attempt()


def test_agents_of_pods_write_the_keys_of_every_node_and_do_nothing_else(settings: Settings, tmp_path: Path) -> None:
    password = tmp_path / "pods"
    answer = json.loads(run("acl", "add-role", "agent", "--password-file", password, "--json").stdout)
    store = Store(
        dataclasses.replace(settings.redis, username=answer["user"], password_file=str(password)), settings.cluster.name
    )
    envelope = EnvelopeFactory("default", "agent").envelope(window(0), ttl=60)
    for name in (NODE, OTHER, "10.244.1.7"):
        store.append(keys.WINDOWS, name, envelope)
        with pytest.raises(StoreRefusedError):
            store.last(keys.WINDOWS, name, 1)
    for rule, name in ((keys.REQUESTS, ""), (keys.JOURNAL, "app-1")):
        with pytest.raises(StoreRefusedError):
            store.append(rule, name, envelope)
    store.close()


def test_a_second_time_keeps_the_password(agent: Store, tmp_path: Path) -> None:
    before = (tmp_path / "agent").read_text()
    message = add_node(NODE, "--password-file", str(tmp_path / "agent")).stdout
    assert "that of" in message
    assert "keeps no ACL file" in message
    assert (tmp_path / "agent").read_text() == before
    agent.check()


def test_printing_changes_nothing_in_redis(settings: Settings, tmp_path: Path) -> None:
    line = add_node("node-7", "--password-file", str(tmp_path / "seven"), "--print").stdout
    password = (tmp_path / "seven").read_text().strip()
    assert line.startswith("user rechannel-default-agent-node-7 reset on #")
    assert password not in line
    redis = dataclasses.replace(
        settings.redis, username="rechannel-default-agent-node-7", password_file=str(tmp_path / "seven")
    )
    with pytest.raises(StoreError):
        Store(redis, "default").check()


def test_bad_arguments_leave_nothing_behind(settings: Settings, tmp_path: Path) -> None:
    assert "node" in add_node("no such node", "--password-file", str(tmp_path / "p"), code=1).stderr
    assert not (tmp_path / "p").exists()
    (tmp_path / "short").write_text("secret")
    assert "16 characters" in add_node(NODE, "--password-file", str(tmp_path / "short"), code=1).stderr
    assert "cannot be written" in add_node(NODE, "--password-file", "/nonexistent/p", code=1).stderr


def test_it_lasts_where_redis_keeps_its_users_in_a_file(
    group: ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users.acl"
    users.write_text("user default on nopass ~* &* +@all\n")
    with RedisServer(group, options={"aclfile": str(users)}) as server:
        monkeypatch.setenv("RECHANNEL_REDIS__URL", server.url)
        monkeypatch.delenv("RECHANNEL_CONFIG", raising=False)
        assert run_json("acl", "add-node", NODE, "--password-file", tmp_path / "p")["lasting"] is True
        assert "user rechannel-default-agent-127.0.0.2 on" in users.read_text()


# -- several servers: Redis does not replicate users --


@pytest.fixture
def cluster(group: ProcessGroup) -> Iterator[SentinelCluster]:
    with SentinelCluster(group) as made:
        yield made


def configured(tmp_path: Path, url: str, more: str = "") -> Path:
    path = tmp_path / "rechannel.toml"
    path.write_text(f'[redis]\nurl = "{url}"\n{more}')
    return path


def works(settings: Settings) -> bool:
    store = Store(settings.redis, "default")
    try:
        store.is_paused()
    except StoreError:
        return False
    finally:
        store.close()
    return True


def test_a_user_outlives_a_fail_over(cluster: SentinelCluster, tmp_path: Path) -> None:
    config, password = configured(tmp_path, cluster.url), tmp_path / "controller"
    first, second = cluster.servers
    text = ("acl", "add-role", "controller", "--config", str(config), "--password-file", str(password))
    answer = json.loads(run(*text, "--json").stdout)
    assert [one["problem"] for one in answer["servers"]] == ["", ""]
    assert f"replicas 127.0.0.1:{second}" in run(*text).stdout
    config = configured(tmp_path, cluster.url, f'username = "{answer["user"]}"\npassword_file = "{password}"\n')
    assert works(load(config, {}))
    cluster.kill(first)
    until(lambda: cluster.master == second)
    until(lambda: works(load(config, {})))


def test_a_replica_that_cannot_be_reached_is_named(cluster: SentinelCluster, tmp_path: Path) -> None:
    cluster.kill(cluster.servers[1])
    config = configured(tmp_path, cluster.url)
    message = run("acl", "add-role", "viewer", "--config", str(config), "--password-file", str(tmp_path / "p")).stdout
    assert f"NOT on 127.0.0.1:{cluster.servers[1]}" in message
    assert "--print" in message
    assert "user rechannel-default-viewer reset on #" in message


SENTINEL_RIGHTS = ("+auth", "+hello", "+ping", "+client|setname", "+sentinel|masters")


def test_what_the_sentinels_must_let_us_ask(cluster: SentinelCluster, tmp_path: Path) -> None:
    (tmp_path / "watcher").write_text("geheim\n")
    more = f'sentinel_username = "watcher"\nsentinel_password_file = "{tmp_path}/watcher"\n'
    config = configured(tmp_path, cluster.url, more)
    for port in cluster.sentinels:
        assert "OK" in ask(port, "ACL", "SETUSER", "watcher", "on", ">geheim", "-@all", *SENTINEL_RIGHTS)
        ask(port, "ACL", "SETUSER", "watcher", *keys.EXTRA)  # which Redis 7.0 does not know
    text = ("acl", "add-role", "viewer", "--config", str(config), "--password-file", str(tmp_path / "p"))
    assert works(load(config, {}))
    message = run(*text).stdout
    assert "NOT on replicas" in message
    assert "redis.sentinel_username needs +sentinel|slaves" in message
    for port in cluster.sentinels:
        ask(port, "ACL", "SETUSER", "watcher", "+sentinel|slaves")
    assert "NOT on" not in run(*text).stdout


# -- the user default --


def test_a_redis_that_lets_everybody_in_is_told_of_until_it_does_not(
    group: ProcessGroup, tmp_path: Path, lines: io.StringIO
) -> None:
    make_keys(tmp_path / "keys")
    more = f'[signing]\nprivate_key_file = "{tmp_path}/keys/signing.key"\n'
    with RedisServer(group) as server:
        config = configured(tmp_path, server.url, more)
        done = run("acl", "add-role", "controller", "--config", config, "--password-file", tmp_path / "p", "--json")
        user = json.loads(done.stdout)["user"]
        assert "ACL SETUSER default off" in done.stderr
        assert "ACL SETUSER default off" in run("config", "check", "--config", config).stderr
        stop = threading.Event()
        stop.set()
        run_controller(load(config, {}), stop)
        assert "ACL SETUSER default off" in lines.getvalue()
        assert "signing.public_key_file is not set" in lines.getvalue()
        store = Store(load(config, {}).redis, "default")
        raw(store).execute_command("ACL", "SETUSER", "default", "off")
        store.close()
        config = configured(tmp_path, server.url, f'username = "{user}"\npassword_file = "{tmp_path}/p"\n{more}')
        assert "default off" not in run("config", "check", "--config", config).stderr
        assert works(load(config, {}))
