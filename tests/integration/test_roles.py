"""Users of each role in a real server: what the table of keys allows is allowed, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from integration.common import GATE, PATIENCE, leading, make_users, raw, run, until
from unit.daemon.fakes import APP, World, window

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from rechannel.migration.link.mailbox import Mailbox
from rechannel.monitors.node.sender import Sender, open_store
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.keys import KeyRule, Keys, Role
from rechannel.wire.messages import DesiredPlacement, Request, StandingOrders
from rechannel.wire.redis.errors import StoreForbiddenError, StoreRefusedError
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer, Verifier
from testbed.redis_server import RedisServer
from testbed.stack import write_config

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300), pytest.mark.usefixtures("lines")]
NODE, OTHER = "127.0.0.2", "127.0.0.3"
ORDERS = ("rebalance --apply", "stop", "pause", "resume", f"drain {NODE}", f"undrain {NODE}", "rollback")

Users = Callable[[Role], Settings]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roles")


@pytest.fixture(scope="module")
def files(server: RedisServer, directory: Path) -> dict[Role | None, Path]:
    """A configuration file for each role, and one for the administrator (None)."""

    def write(user: str, password: Path, role: Role | None) -> Path:
        sections: dict[str, dict[str, Any]] = {
            "redis": {"username": user, "password_file": str(password)},
            "signing": {} if role is Role.CONTROLLER else {"private_key_file": ""},
            "agent": {"node": NODE},
            "controller": {"name": "test", "lease": 10},
            "gate": GATE,
        }
        return write_config(directory, f"unix://{server.socket_path}", sections, f"{role or 'admin'}.toml")

    return make_users(directory, write)


@pytest.fixture
def settings(files: dict[Role | None, Path]) -> Iterator[Callable[[Role | None], Settings]]:
    yield lambda role: load(files[role], {})


@pytest.fixture
def open_as(settings: Callable[[Role | None], Settings]) -> Iterator[Callable[[Role | None], Store]]:
    opened: dict[Role | None, Store] = {}

    def store(role: Role | None) -> Store:
        if role not in opened:
            opened[role] = Store(settings(role).redis, "default")
        return opened[role]

    admin = raw(store(None))
    for key in admin.scan_iter("*"):
        admin.delete(key)
    yield store
    for result in opened.values():
        result.close()


def key_of(rule: KeyRule) -> str:
    return Keys("default")(rule, NODE if "{node}" in rule.pattern else APP)


WRITE: dict[str, Callable[[redis.Redis, str], Any]] = {
    "stream": lambda client, key: client.xadd(key, {"m": "x"}, maxlen=10) and client.expire(key, 60),
    "string": lambda client, key: client.set(key, "x", px=60_000),
    "sorted set": lambda client, key: client.zadd(key, {"x": 1}),
}
READ: dict[str, Callable[[redis.Redis, str], Any]] = {
    "stream": lambda client, key: client.xrevrange(key, count=1),
    "string": lambda client, key: client.getrange(key, 0, 10),
    "sorted set": lambda client, key: client.zrangebyscore(key, 0, "+inf"),
}


def allowed(act: Callable[[redis.Redis, str], Any], client: redis.Redis, key: str) -> bool:
    try:
        act(client, key)
    except redis.exceptions.NoPermissionError:
        return False
    return True


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("rule", keys.TABLE, ids=lambda rule: rule.pattern)
def test_a_role_may_what_the_table_says(open_as: Callable[[Role | None], Store], rule: KeyRule, role: Role) -> None:
    client, key = raw(open_as(role)), key_of(rule)
    assert allowed(WRITE[rule.kind], client, key) == rule.written_by(role)
    raw(open_as(None)).delete(key)
    WRITE[rule.kind](raw(open_as(None)), key)
    assert allowed(READ[rule.kind], client, key) == rule.read_by(role)
    foreign = key.replace("{default}", "{other}")
    assert not allowed(WRITE[rule.kind], client, foreign)
    assert not allowed(READ[rule.kind], client, foreign)


@pytest.mark.parametrize("rule", [keys.WINDOWS, keys.EVIDENCE], ids=lambda rule: rule.pattern)
def test_an_agent_may_nothing_on_another_node(open_as: Callable[[Role | None], Store], rule: KeyRule) -> None:
    client = raw(open_as(Role.AGENT))
    assert not allowed(WRITE["stream"], client, Keys("default")(rule, OTHER))
    assert not allowed(READ["stream"], client, Keys("default")(rule, NODE))


def test_one_key_one_writing_role() -> None:
    for rule in keys.TABLE:
        writers = {role for role in Role if rule.written_by(role)}
        assert writers in ({rule.writer}, {Role.VIEWER, Role.OPERATOR}), rule.pattern


DANGEROUS = (
    "KEYS *",
    "SCAN 0",
    "DBSIZE",
    "RANDOMKEY",
    "FLUSHALL",
    "FLUSHDB",
    "CONFIG GET requirepass",
    "CONFIG SET dir /tmp",
    "ACL LIST",
    "ACL SETUSER thief on",
    "ACL WHOAMI",
    "MODULE LIST",
    "SHUTDOWN",
    "SAVE",
    "BGSAVE",
    "REPLICAOF NO ONE",
    "SLAVEOF NO ONE",
    "MIGRATE h 1 k 0 1",
    "MONITOR",
    "CLIENT LIST",
    "CLIENT KILL ID 1",
    "CLIENT PAUSE 1",
    "SLOWLOG GET",
    "LATENCY RESET",
    "PUBLISH c m",
    "SUBSCRIBE c",
    "SWAPDB 0 1",
    "FUNCTION LIST",
    "SCRIPT FLUSH",
    "SCRIPT KILL",
    "EVAL return(1) 0",
    "FCALL f 0",
    "DUMP k",
    "RESTORE k 0 x",
    "RENAME k l",
    "COPY k l",
    "OBJECT ENCODING k",
    "SORT k",
    "XGROUP CREATE k g 0",
    "CLUSTER INFO",
)


@pytest.mark.parametrize("role", Role)
def test_dangerous_commands_are_refused(open_as: Callable[[Role | None], Store], role: Role) -> None:
    client = raw(open_as(role))
    commands = [*DANGEROUS, *(() if role is Role.CONTROLLER else ("EVALSHA abc 0", "SCRIPT LOAD return(1)"))]
    let_through = []
    for command in commands:
        try:
            client.execute_command(*command.split())
        except redis.exceptions.NoPermissionError:
            continue
        except redis.ResponseError as error:
            let_through.append(f"{command}: {error}")
            continue
        let_through.append(command)
    assert let_through == []


# -- every part works with its own user --


@pytest.fixture
def led(settings: Callable[[Role | None], Settings], open_as: Callable[[Role | None], Store]) -> Iterator[World]:
    """A real controller as its own user leads over an application that a link's user reports."""
    world = World(_Split(open_as), time.time)  # type: ignore[arg-type]
    world.ready()
    with leading(settings(Role.CONTROLLER), lambda: open_as(Role.VIEWER).get(keys.STATE)):
        yield world


class _Split:
    """Sends what agents write as an agent, what links write as a link."""

    cluster = "default"

    def __init__(self, open_as: Callable[[Role | None], Store]) -> None:
        self._open_as = open_as

    def _of(self, rule: KeyRule, name: str) -> Store:
        other = rule.writer is Role.AGENT and name != NODE  # only one node has a user here
        return self._open_as(None if other else rule.writer)

    def put(self, rule: KeyRule, name: str, envelope: Any, ttl: float | None = None) -> None:
        self._of(rule, name).put(rule, name, envelope, ttl)

    def append(self, rule: KeyRule, name: str, *envelopes: Any) -> None:
        self._of(rule, name).append(rule, name, *envelopes)

    def register_application(self, application: str, now: float) -> None:
        self._open_as(Role.LINK).register_application(application, now)


def test_viewers_look_and_ask_and_order_nothing(
    led: World, files: dict[Role | None, Path], open_as: Callable[[Role | None], Store]
) -> None:
    viewer = files[Role.VIEWER]
    shown = json.loads(run("status", "--partitions", "--json", "--config", viewer).stdout)
    assert shown["applications"][0]["application"] == APP
    assert shown["controller"]["leader"].startswith("test/")
    run("top", "--once", "--config", viewer)
    planned = json.loads(run("plan", "--json", "--config", viewer).stdout)
    assert planned["decision"]["result"] == "planned"
    run("rebalance", "--config", viewer)  # a dry run is a question
    assert planned["decision"]["decision"] in run("history", "--json", "--config", viewer).stdout
    for command in ORDERS:
        refused = run(*command.split(), "--config", viewer, code=5)
        assert "an order, which takes a Redis user of the role operator" in refused.stderr
    assert open_as(None).last_id(keys.REQUESTS) == "0"


def test_an_order_among_the_questions_is_refused_whoever_wrote_it(
    led: World, open_as: Callable[[Role | None], Store]
) -> None:
    viewer = open_as(Role.VIEWER)
    author = EnvelopeFactory("default", "thief")
    for verb in ("rebalance", "apply", "rollback", "stop", "pause", "resume", "drain", "undrain"):
        request = Request(request=f"forged-{verb}", user="root", command={"verb": verb, "nodes": [NODE]})
        viewer.append(keys.QUESTIONS, "", author.envelope(request, ttl=30))
        result = until(lambda verb=verb: viewer.get(keys.REPLY, f"forged-{verb}"))
        assert (result.body.code, result.body.sentence.split(",")[0]) == (1, f"{verb} is an order")
    assert open_as(None).get(keys.DESIRED, APP) is None
    assert not open_as(None).is_paused()


def test_operators_order(led: World, files: dict[Role | None, Path], open_as: Callable[[Role | None], Store]) -> None:
    operator = files[Role.OPERATOR]
    assert "paused" in run("pause", "--reason", "a test", "--config", operator).stdout
    assert "resumed" in run("resume", "--config", operator).stdout
    run("plan", "--config", operator)
    run("status", "--config", operator)
    run("rebalance", "--apply", "--config", operator)
    assert open_as(Role.LINK).get(keys.DESIRED, APP) is not None
    run("stop", "--config", operator)
    led.ready()
    run("drain", NODE, "--config", operator)
    run("undrain", NODE, "--config", operator)


def test_a_link_carries_its_mail_with_its_own_user(
    settings: Callable[[Role | None], Settings], open_as: Callable[[Role | None], Store], directory: Path
) -> None:
    own = settings(Role.LINK)
    signer = Signer.from_file(directory / "keys/signing.key")
    author = EnvelopeFactory("default", f"link@{APP}")
    boss = EnvelopeFactory("default", "controller")
    desired = boss.envelope(DesiredPlacement(decision="d", runs={}, moves=[]), ttl=60, application=APP, epoch=1)
    open_as(Role.CONTROLLER).put(keys.DESIRED, APP, signer.sign(desired))
    open_as(Role.CONTROLLER).put(keys.ORDERS, "", signer.sign(boss.envelope(StandingOrders(), ttl=60, epoch=1)))
    world = World(_Split(open_as), time.time)  # type: ignore[arg-type]
    world.ready()
    courier = Mailbox(own.redis, author, APP, Verifier.from_file(own.signing.public_key_file))
    courier.read_orders()
    assert courier.pop_orders() is not None
    assert courier.read_last_placement("no-query") is None
    report = open_as(Role.VIEWER).get(keys.REPORT, APP)
    courier.post_report(report.body, {NODE})  # type: ignore[union-attr, arg-type]
    courier.start()
    try:
        assert until(courier.pop_desired).body.decision == "d"
    finally:
        courier.stop(PATIENCE)
    assert courier.rejected_messages == 0


def test_an_agent_pushes_with_its_own_user(
    settings: Callable[[Role | None], Settings], open_as: Callable[[Role | None], Store]
) -> None:
    own = settings(Role.AGENT)
    sender = Sender(NODE, lambda: open_store(own), buffered_windows=10)
    sender.offer(EnvelopeFactory("default", f"agent:{NODE}").envelope(window(0), ttl=60))
    assert sender.push() == 0.0
    sender._close_store()
    assert len(open_as(Role.VIEWER).last(keys.WINDOWS, NODE, 10)) == 1


def test_a_link_cannot_forge_what_a_controller_says(open_as: Callable[[Role | None], Store], directory: Path) -> None:
    forged = Signer(Ed25519PrivateKey.generate()).sign(
        EnvelopeFactory("default", "thief").envelope(StandingOrders(paused=True), ttl=60, epoch=9)
    )
    for rule, name in ((keys.ORDERS, ""), (keys.DESIRED, APP), (keys.STATE, "")):
        with pytest.raises(StoreForbiddenError):
            open_as(Role.LINK).put(rule, name, forged)


def test_two_of_one_role_have_passwords_of_their_own(
    files: dict[Role | None, Path], settings: Callable[[Role | None], Settings], tmp_path: Path
) -> None:
    for name in ("ann", "bob"):
        text = ["acl", "add-role", "operator", name, "--json", "--password-file", str(tmp_path / name)]
        message = json.loads(run(*text, "--config", files[None]).stdout)
        assert message["user"] == f"rechannel-default-operator-{name}"
    passwords = {(tmp_path / name).read_text() for name in ("ann", "bob")}
    assert len(passwords) == 2
    wrong = dataclasses.replace(
        settings(None).redis, username="rechannel-default-operator-ann", password_file=str(tmp_path / "bob")
    )
    with pytest.raises(StoreRefusedError, match="refuses this user"):
        Store(wrong, "default").check()


@pytest.mark.parametrize(
    ("names", "code", "phrase"),
    [(["link", "a b"], 1, "letters"), (["king"], 2, "king")],
)
def test_names_and_roles_that_cannot_be(
    files: dict[Role | None, Path], tmp_path: Path, names: list[str], code: int, phrase: str
) -> None:
    text = ("acl", "add-role", *names, "--config", files[None], "--password-file", tmp_path / "p")
    assert phrase in run(*text, code=code).stderr
    assert not (tmp_path / "p").exists()
