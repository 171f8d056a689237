"""A real Redis full of what nobody of ours wrote, a real controller process, and a link's courier.

Every key of the table holds garbage in turn: another type of key, no message, a message of another kind, values far too
large, streams that nobody trims. The controller lives, leads and answers; the link obeys nothing that was not signed;
neither of the two grows with what is written.
"""

from __future__ import annotations

import base64
import functools
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import redis
from click.testing import CliRunner
from integration.common import GATE, PATIENCE, events, start, state, until
from unit.daemon.fakes import APP, QUERY, World, query, report

from rechannel.conf.settings import Settings
from rechannel.daemon.cli.main import main
from rechannel.migration.link.mailbox import Mailbox
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, EnvelopeFactory, decode, encode
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.keys import MAX_MESSAGE_BYTES, KeyRule
from rechannel.wire.measurements import MapOutput
from rechannel.wire.messages import DesiredMove, DesiredPlacement, StandingOrders
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer, Verifier, make_keys
from testbed.processes import ManagedProcess, ProcessGroup

pytestmark = [pytest.mark.redis, pytest.mark.timeout(10 * PATIENCE)]
SECTIONS = {"redis": {"timeout": 5}, "controller": {"lease": 25}, "gate": GATE}
SERVER = {"password": "geheim", "options": {"maxmemory": "2gb"}}
HOST = "127.0.0.2"
NAMES = {"node": HOST, "app": APP, "query": QUERY, "request": "r1"}
MIB = 2**20


@pytest.fixture
def controller(group: ProcessGroup, config: Path, store: Store, world: World) -> Iterator[ManagedProcess]:
    process = start(group, "controller", "controller", config)
    until(lambda: state(store), "a leader")
    yield process
    process.require_alive()
    assert not {"application-failed", "job-failed"} & set(events(process))


def raw(store: Store) -> redis.Redis:
    """A client of somebody else: patient, and with all rights."""
    plain = store._redis.connection_pool.connection_kwargs
    return redis.Redis(unix_socket_path=plain["path"], password="geheim", socket_timeout=PATIENCE)


def key_of(store: Store, rule: KeyRule) -> str:
    name = next((name for what, name in NAMES.items() if "{" + what + "}" in rule.pattern), "")
    return store.keys(rule, name)


def ask(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, [*arguments, "--json"])
    assert "Traceback" not in done.output, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout


# -- garbage everywhere; each kind in one step, as the controller goes on writing meanwhile --


def _as_list(client: redis.Redis, key: str) -> None:
    client.pipeline().delete(key).rpush(key, "x", "y").execute()


def _as_hash(client: redis.Redis, key: str) -> None:
    client.pipeline().delete(key).hset(key, "a", "b").execute()


def _as_text(client: redis.Redis, key: str) -> None:
    client.set(key, b"\xff\x00 no message \n-1")


def _as_huge_text(client: redis.Redis, key: str) -> None:
    client.pipeline().set(key, b'{"schema":2,').setrange(key, 2 * MAX_MESSAGE_BYTES, b"}").execute()


def _as_stream(client: redis.Redis, key: str) -> None:
    at_once = client.pipeline().delete(key)
    for data in (b"", b"{}", b"[" * 100_000, b'{"schema":1e999}'):
        at_once.xadd(key, {"m": data, "n": "x"})
    at_once.xadd(key, {"x": "y"}, id=f"{2**63}-1").execute()


def _as_long_stream(client: redis.Redis, key: str) -> None:
    """Entries that nobody trims, made at the server itself: forty times what most streams may have."""
    script = "redis.call('DEL', KEYS[1]) for i = 1, 20000 do redis.call('XADD', KEYS[1], '*', 'm', 'x') end"
    client.eval(script, 1, key)


def _as_large_stream(client: redis.Redis, key: str) -> None:
    large = "redis.call('XADD', KEYS[1], '*', 'm', string.rep(' ', 20971520))"
    client.eval(f"redis.call('DEL', KEYS[1]) {large} {large}", 1, key)


def _as_members(client: redis.Redis, key: str) -> None:
    members = {"../..": "inf", "x" * 200: time.time() + 9, APP + "\n": time.time(), "\x00": time.time()}
    client.pipeline().delete(key).zadd(key, members).execute()


GARBAGE = [
    _as_list,
    _as_hash,
    _as_text,
    _as_huge_text,
    _as_stream,
    _as_long_stream,
    _as_large_stream,
    _as_members,
]


def test_whatever_the_keys_hold_the_controller_lives_leads_and_answers(
    store: Store, world: World, controller: ManagedProcess, settings: Settings
) -> None:
    """Each kind of garbage on all keys of the table at once, then the honest parts say what they say again."""
    before = psutil.Process(controller.pid).memory_info().rss
    for spoil in GARBAGE:
        for rule in keys.TABLE:
            spoil(raw(store), key_of(store, rule))
        time.sleep(1.0)  # the controller has seen it
        controller.require_alive()
        for command in (("status",), ("history",)):
            text = until(functools.partial(_shown, *command), f"{command} after {spoil.__name__}")
            json.loads(text)
        text = until(lambda: _planned(world), f"a plan after {spoil.__name__}")
        assert json.loads(text)["application"] == APP
        until(lambda: state(store), f"a leader after {spoil.__name__}")
        code, text = ask("rebalance", "--apply", "--reason", "test")
        assert code in (ExitCode.DONE, ExitCode.REFUSED, ExitCode.NOTHING, ExitCode.NOT_READY), (spoil.__name__, text)
        world.measure()
        link = _courier(store, settings)
        link._exchange()
        taken = link.pop_desired()
        if taken is not None:
            Verifier.from_file(settings.signing.public_key_file).check(taken)
    raw(store).flushall()
    grown = psutil.Process(controller.pid).memory_info().rss - before
    assert grown < 300 * MIB, f"{grown / MIB:.0f} MiB"


def _planned(world: World) -> str:
    """The leader's decision on a plan, whatever it is; asked for again until it knows of the application again."""
    world.ready()
    code, text = ask("plan")
    answered = code in (ExitCode.DONE, ExitCode.REFUSED, ExitCode.NOTHING, ExitCode.NOT_READY)
    return text if answered and "decision" in json.loads(text) else ""


def _shown(*command: str) -> str:
    code, text = ask(*command)
    assert code in (ExitCode.DONE, ExitCode.REDIS), text  # on a busy box Redis may not answer in time
    return text if code == ExitCode.DONE else ""


def _courier(store: Store, settings: Settings) -> Mailbox:
    verifier = Verifier.from_file(settings.signing.public_key_file)
    made = Mailbox(settings.redis, EnvelopeFactory(settings.cluster.name, "link", time.time), APP, verifier)
    made._store = store
    made.post_report(report([query(["0"])]), {HOST})
    made._report = None  # what there is in Redis stays the link's word
    return made


# -- nothing unsigned steers --


def _desired(settings: Settings, **changes: Any) -> Envelope:
    move = DesiredMove(move="d.0", query=QUERY, stage=0, partition=0, source="0", target="1", step=0)
    body = DesiredPlacement(decision="d", runs={QUERY: "run-1"}, moves=[move])
    author = EnvelopeFactory(settings.cluster.name, "a", time.time)
    return msgspec.structs.replace(author.envelope(body, ttl=60, application=APP, epoch=7), **changes)


def test_a_link_takes_only_what_is_signed_and_its_own(store: Store, settings: Settings, tmp_path: Path) -> None:
    signer = Signer.from_file(settings.signing.private_key_file)
    make_keys(tmp_path / "others")
    other = Signer.from_file(tmp_path / "others" / "signing.key")
    good = signer.sign(_desired(settings))
    flipped = base64.b64encode(bytes(byte ^ 1 for byte in base64.b64decode(good.signature))).decode()
    hostile = {
        "unsigned": _desired(settings),
        "by another key": other.sign(_desired(settings)),
        "a signature's bits": msgspec.structs.replace(good, signature=flipped),
        "another epoch": msgspec.structs.replace(good, epoch=8),
        "another expiry": msgspec.structs.replace(good, expires=good.expires + 1),
        "another application": signer.sign(_desired(settings, application="app-2")),
        "another cluster": signer.sign(_desired(settings, cluster="other")),
        "another kind": signer.sign(_desired(settings, body=StandingOrders(paused=True))),
    }
    link = _courier(store, settings)
    for number, (what, envelope) in enumerate(hostile.items(), start=1):
        raw(store).set(store.keys(keys.DESIRED, APP), encode(envelope))
        link._exchange()
        assert link.pop_desired() is None, what
        assert link.rejected_messages == number, what
    raw(store).set(store.keys(keys.ORDERS), encode(_desired(settings, body=StandingOrders(paused=True))))
    link._exchange()
    assert link.pop_orders() is None
    raw(store).set(store.keys(keys.DESIRED, APP), encode(good))
    link._exchange()
    assert link.pop_desired() == decode(encode(good))


def test_a_migration_under_way_is_not_bent_by_what_is_written_over_it(
    store: Store, world: World, controller: ManagedProcess, settings: Settings
) -> None:
    """Somebody writes over the desired placement all the time: the link sees the controller's word, or refuses."""
    until(lambda: world.ready() or ask("rebalance", "--apply", "--force", "--reason", "test")[0] == 0, "a migration")
    verifier = Verifier.from_file(settings.signing.public_key_file)
    link, targets = _courier(store, settings), set()
    for number in range(40):
        forged = _desired(settings, sequence=10_000 + number, epoch=2**40, signature=secrets.token_urlsafe(64))
        raw(store).set(store.keys(keys.DESIRED, APP), encode(forged))
        link._exchange()
        world.ready()
        time.sleep(0.05)
        taken = link.pop_desired()
        if taken is not None:
            verifier.check(taken)
            assert isinstance(taken.body, DesiredPlacement)
            targets |= {move.move for move in taken.body.moves}
    assert "d.0" not in targets
    assert link.rejected_messages >= 20  # now and then the controller was faster
    until(lambda: link._exchange() or link.pop_desired() is not None or targets, "the controller's word again")


# -- nothing grows --


@pytest.mark.slow
def test_memory_stays_bounded_while_hostile_content_is_written(
    store: Store, world: World, controller: ManagedProcess, settings: Settings
) -> None:
    """Large, valid messages of an application and a node that try to be kept, three times as much as may be kept."""
    process, here = psutil.Process(controller.pid), psutil.Process()
    link = _courier(store, settings)
    author = EnvelopeFactory(settings.cluster.name, "hostile", time.time)
    batch = store.last(keys.BATCHES, APP, 1)[0].body
    window = store.last(keys.WINDOWS, HOST, 1)[0].body
    rows = batch.stages[1].tasks * 2000  # some 2 MB each
    world.queries = [query(world.placement, name) for name in ("q1", "q2", "q3")]
    seen: list[int] = []
    for number in range(100, 250):
        stage = msgspec.structs.replace(batch.stages[1], tasks=rows)
        large = msgspec.structs.replace(batch, batch=number, end=time.time(), stages=[batch.stages[0], stage])
        large = msgspec.structs.replace(large, query=f"q{1 + number % 3}")
        store.append(keys.BATCHES, APP, author.envelope(large, ttl=60, application=APP, run="run-1"))
        sent = [MapOutput(APP, "0", 0, number * 40 + task, [300] * 2000) for task in range(40)]
        wide = msgspec.structs.replace(window, end=time.time(), map_outputs=sent)
        store.append(keys.WINDOWS, HOST, author.envelope(wide, ttl=60))
        for rule in (keys.EVIDENCE, keys.REQUESTS, keys.DECISIONS, keys.OUTCOMES):
            raw(store).xadd(key_of(store, rule), {"m": secrets.token_bytes(MIB)}, maxlen=40)
        for index in range(20):
            name = f"fake-{number % 10}-{index}"
            store.register_application(name, time.time())
            raw(store).set(store.keys(keys.REPORT, name), secrets.token_bytes(MIB // 4), px=5000)
        world.report()
        link._exchange()
        seen.append(process.memory_info().rss)
        time.sleep(0.15)  # the controller reads on every few seconds
    grown = max(seen) - seen[0]
    assert max(seen) < 1000 * MIB, f"{[rss // MIB for rss in seen]}"
    assert len(link._closings) <= 10_000 and here.memory_info().rss < 2000 * MIB
    assert link.rejected_messages > 0
    print(f"controller grew by {grown / MIB:.0f} MiB to {max(seen) / MIB:.0f} MiB in {len(seen)} rounds")
    status = json.loads(until(lambda: (result := ask("status"))[0] == ExitCode.DONE and result[1], "a status"))
    assert status["rejected_messages"] > 0  # the fakes' reports
    controller.require_alive()
    until(lambda: state(store), "a leader")
