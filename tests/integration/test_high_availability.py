"""Several controllers on real servers: one that was held up writes nothing more; a fail-over of Redis is survived."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.common import GATE, PATIENCE, configured, events, leading, raw, run_json, start, state, until
from unit.daemon.fakes import APP, World, app, decide, order, query, report

from rechannel.conf import lease_timing
from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from rechannel.daemon.control.controller import Collaborators, Controller
from rechannel.daemon.decide import pipeline
from rechannel.daemon.decide.pipeline import DecisionRequest, Draft, PlanBasis
from rechannel.daemon.jobs.clock import Clock
from rechannel.daemon.service import signer_of
from rechannel.migration.link.mailbox import Mailbox
from rechannel.wire import keys
from rechannel.wire.commands import Drain, Pause
from rechannel.wire.envelope import Envelope, EnvelopeFactory, MessageError, decode
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.keys import KeyRule
from rechannel.wire.measurements import AgentWindow
from rechannel.wire.messages import ControllerState, Request
from rechannel.wire.redis.errors import StoreDeposedError, StoreUnavailableError
from rechannel.wire.redis.lua_scripts import EPOCH_LEAP
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Verifier
from testbed.processes import ProcessDiedError, ProcessGroup
from testbed.redis_server import SentinelCluster, ask

pytestmark = [pytest.mark.redis, pytest.mark.timeout(10 * PATIENCE)]
NODE = "127.0.0.2"


def sections(lease: float, window: float = 5.0) -> dict[str, dict[str, Any]]:
    return {
        "redis": {"timeout": 0.9},
        "agent": {"window": window},
        "controller": {"lease": lease},
        "gate": GATE,
    }


SECTIONS = sections(10)


@pytest.fixture
def settings(config: Path) -> Settings:
    """Those of controllers in this process, which must not lose the lead because the machine is slow."""
    result = load(config)
    return dataclasses.replace(result, controller=dataclasses.replace(result.controller, lease=60.0))


def written_by(store: Store, name: str) -> set[tuple[str, int]]:
    """Every message of a controller that stands in Redis: its key and sequence."""
    result = set()
    for key in raw(store).scan_iter("rechannel:*"):
        kind = raw(store).type(key)
        values = [raw(store).get(key)] if kind == b"string" else []
        values += [fields[b"m"] for _, fields in raw(store).xrange(key)] if kind == b"stream" else []
        for value in values:
            with contextlib.suppress(MessageError):
                envelope = decode(value or b"")
                if envelope.sender.startswith(f"{name}/"):
                    result.add((key.decode(), envelope.sequence))
    return result


def content(store: Store) -> dict[bytes, bytes | None]:
    return {key: raw(store).dump(key) for key in raw(store).scan_iter("*")}  # type: ignore[misc]


def test_a_leader_that_is_paused_in_a_migration_writes_nothing_more_when_it_goes_on(
    config: Path, group: ProcessGroup, store: Store, world: World
) -> None:
    first = start(group, "first", "controller", config)
    until(lambda: state(store), "a leader")
    other = start(group, "other", "controller", config)
    until(lambda: "controller-starts" in events(other))
    world.ready()  # starting took its time
    done = run_json("rebalance", "--apply")
    assert done["decision"]["result"] == "applied"
    world.obey("steered", only=1)
    until(lambda: "running" in (state(store) or world).applications[APP])  # type: ignore[union-attr]

    os.kill(first.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    until(lambda: (result := state(store)) is not None and result.leader.startswith("other/"), "the stand-by to lead")
    taken = time.monotonic() - stopped
    result = until(lambda: (at := store.get(keys.DESIRED, APP)) is not None and at.epoch == 2 and at)
    assert result.body.decision == done["decision"]["decision"]
    world.ready()
    assert run_json("rebalance", "--apply", code=4)["decision"]["reason"] == "migration-running"
    before = written_by(store, "first")
    assert before

    os.kill(first.pid, signal.SIGCONT)
    until(lambda: "lead-lost" in events(first), "the old leader to stand by")
    seen = raw(store).xlen(store.keys(keys.DECISIONS))
    for _ in range(10):  # while the new leader goes on, renews its lease, and the old one looks
        world.report()
        written = written_by(store, "other")
        until(lambda written=written: written_by(store, "other") != written)
    assert written_by(store, "first") <= before
    assert raw(store).xlen(store.keys(keys.DECISIONS)) == seen
    assert store.get(keys.DESIRED, APP).epoch == 2  # type: ignore[union-attr]
    print(f"the stand-by led {taken:.1f} s after the leader was stopped (lease 10 s)")

    group.kill("other")
    until(
        lambda: (result := state(store)) is not None and result.leader.startswith("first/"), "the old one to lead again"
    )
    assert state(store).epoch == 3  # type: ignore[union-attr]
    assert first.alive()


def test_what_a_deposed_leader_still_does_changes_nothing(
    settings: Settings, store: Store, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, leads = (
        Controller(settings, Collaborators(store, signer_of(settings), Clock(), name)) for name in ("late", "leads")
    )
    late.run_leader_cycle()
    made = decide(late, apply=True)
    assert made.result == "applied", made.sentence
    world.obey("steered", only=1)
    late.follow()
    raw(store).delete(store.keys(keys.LEASE))
    assert leads.run_leader_cycle() == "leading in epoch 2"
    leads.follow()
    # It was stopped right after it had looked whether it leads.
    monkeypatch.setattr(late.lead, "holds", lambda: True)
    pause = Request(request="r1", user="u", reason="r", command={"verb": "pause"})
    store.append(keys.REQUESTS, "", EnvelopeFactory("default", "cli").envelope(pause, ttl=60))
    before = content(store)
    refused = 0
    for act in (
        late.follow,
        late.decide_all,
        late.answer_requests,
        late._cluster.publish_state,
        lambda: order(late, Pause()),
        lambda: order(late, Drain(nodes=[NODE]), reason="r"),
        lambda: app(late).migrations.stop(),
        lambda: late._requests.handle_requests(),
        late.close,
    ):
        try:
            act()
        except StoreDeposedError:
            refused += 1
        assert content(store) == before, act
    assert refused >= 6
    assert leads.answer_requests() == 1
    assert store.is_paused()


def test_an_order_is_carried_out_once_though_its_leader_vanishes_before_it_answers(
    settings: Settings, store: Store, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = signer_of(settings)
    first, second = (Controller(settings, Collaborators(store, signer, Clock(), name)) for name in ("first", "second"))
    first.run_leader_cycle()
    real = first.lead.store.put

    def vanish(rule: KeyRule, name: str, envelope: Envelope, ttl: float | None = None) -> None:
        if rule is keys.REPLY:
            raise StoreUnavailableError("gone")
        real(rule, name, envelope, ttl)

    monkeypatch.setattr(first.lead.store, "put", vanish)
    order = Request(request="r1", user="u", reason="r", command={"verb": "rebalance", "force": True})
    store.append(keys.REQUESTS, "", EnvelopeFactory("default", "cli").envelope(order, ttl=60))
    with pytest.raises(StoreUnavailableError):
        first.answer_requests()
    expected = store.get(keys.DESIRED, APP)
    assert expected is not None
    world.obey("drained")
    raw(store).delete(store.keys(keys.LEASE))
    second.run_leader_cycle()
    assert second.answer_requests() == 1
    reply = store.get(keys.REPLY, "r1")
    assert reply is not None
    assert reply.body.code == ExitCode.UNCLEAR
    assert "history" in reply.body.sentence
    assert [line.body.decision for line in store.last(keys.DECISIONS, "", 10)] == [expected.body.decision]
    assert 60 < raw(store).ttl(store.keys(keys.CLAIM, "r1")) <= keys.CLAIM.ttl


def test_an_epoch_of_another_line_of_history_is_leapt_over(store: Store) -> None:
    assert store.acquire_lease("a", 100, 0).epoch == 1
    number, line = raw(store).get(store.keys(keys.EPOCH)).split()  # type: ignore[union-attr]
    assert (number, len(line)) == (b"1", 40)
    raw(store).set(store.keys(keys.EPOCH), b"1 " + b"0" * 40)  # as a replica of another server has it
    assert store.acquire_lease("a", 100, 0).epoch == 1 + EPOCH_LEAP, "though the lease itself came along"
    assert store.acquire_lease("a", 100, 0).epoch == 1 + EPOCH_LEAP
    raw(store).set(store.keys(keys.EPOCH), b"2000")  # as an earlier release wrote it
    assert store.acquire_lease("a", 100, 0).epoch == 2001


# -- sentinels --


@pytest.fixture
def cluster(group: ProcessGroup) -> Iterator[SentinelCluster]:
    cluster = SentinelCluster(group)
    try:
        with cluster:
            yield cluster
    except (FileNotFoundError, ProcessDiedError) as error:
        pytest.skip(f"REDIS SENTINEL IS NOT TESTED HERE: {error}")


def test_everything_goes_on_after_a_fail_over_that_lost_the_newest_epoch(
    cluster: SentinelCluster, group: ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path, cluster.url, sections(10, window=0.5), password="")
    monkeypatch.setenv("RECHANNEL_CONFIG", str(config))
    settings = load(config)
    store = Store(settings.redis, "default")
    verifier = Verifier.from_file(settings.signing.public_key_file)
    courier = Mailbox(settings.redis, EnvelopeFactory("default", "link"), APP, verifier)
    courier.start()
    accepted = 0

    def epoch_above(least: int) -> ControllerState | None:
        courier.post_report(report([query(list("0123"))], accepted_epoch=accepted), set())
        result = state(store)
        return result if result is not None and result.epoch > least else None

    try:
        for name in ("one", "two"):
            start(group, name, "controller", config)
        start(group, "agent", "agent", config, "--node", NODE)
        until(lambda: epoch_above(0), "a leader")
        until(lambda: store.last(keys.WINDOWS, NODE, 1), "an agent's window")
        master, replica = cluster.servers
        assert "connected_slaves:1" in ask(master, "INFO", "replication")

        # The replica hears no more, an epoch is given out, and the master dies.
        os.kill(cluster.processes[replica].pid, signal.SIGSTOP)
        accepted = 7
        inputs = until(lambda: epoch_above(7), "an epoch above the links'").epoch
        accepted = 0
        killed, wall = time.monotonic(), time.time()
        cluster.kill(master)
        os.kill(cluster.processes[replica].pid, signal.SIGCONT)

        took = {}

        def fresh(what: str, actual: Envelope | None) -> None:
            if what not in took and actual is not None and actual.time > wall:
                took[what] = time.monotonic() - killed

        def back() -> bool:
            epoch_above(0)
            windows = [line for line in store.last(keys.WINDOWS, NODE, 1) if isinstance(line.body, AgentWindow)]
            fresh("controller", store.get(keys.STATE))
            fresh("agent", windows[-1] if windows else None)
            fresh("link", store.get(keys.REPORT, APP))
            return len(took) == 3

        until(back, f"all to be back, {took}")
        print("seconds after kill -9 of the master:", {what: round(seconds, 1) for what, seconds in took.items()})
        led = until(lambda: epoch_above(inputs), "an epoch above all that were given out")
        assert led.epoch > EPOCH_LEAP
        accepted = led.epoch + 5000
        assert until(lambda: epoch_above(accepted), "an epoch above the links'")
        assert run_json("pause")["paused"] is True
        assert run_json("status")["controller"]["paused"] is True
        assert "controller" not in [name for name, process in group.processes.items() if not process.alive()]
        group.check()
    finally:
        courier.stop(5)
        store.close()


def test_a_policy_that_plans_for_several_leases_acts_and_keeps_nobody_waiting(
    settings: Settings, store: Store, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = lease_timing.least_lease(lease_timing.longest_call(settings.redis)) + 1.0
    settings = dataclasses.replace(settings, controller=dataclasses.replace(settings.controller, lease=lease))
    begun, go_on = threading.Event(), threading.Event()
    real = pipeline.draft_decision

    def slow(request: DecisionRequest, basis: PlanBasis) -> Draft:
        draft = real(request, basis)
        begun.set()
        assert go_on.wait(PATIENCE)
        return draft

    monkeypatch.setattr(pipeline, "draft_decision", slow)
    author = EnvelopeFactory("default", "cli")

    def order(name: str, verb: str) -> None:
        requested = Request(request=name, user="u", reason="r", command={"verb": verb})
        store.append(keys.REQUESTS, "", author.envelope(requested, ttl=PATIENCE))

    with leading(settings, lambda: state(store)):
        other = Controller(settings, Collaborators(store, signer_of(settings), Clock(), "other"))
        world.ready()
        order("slow", "rebalance")
        assert begun.wait(PATIENCE)
        since = time.monotonic()
        longest, number = 0.0, 0
        while time.monotonic() < since + 3 * lease:
            world.report()
            assert other.run_leader_cycle().startswith("standing by"), "the lease is renewed"
            requested = time.monotonic()
            order(f"quick-{number}", "resume")
            until(lambda number=number: store.get(keys.REPLY, f"quick-{number}"), "an answer")
            longest = max(longest, time.monotonic() - requested)
            number += 1
        assert store.get(keys.REPLY, "slow") is None
        go_on.set()
        reply = until(lambda: store.get(keys.REPLY, "slow"), "the plan")
        assert reply.body.code == ExitCode.DONE, reply.body.sentence
        expected = store.get(keys.DESIRED, APP)
        assert expected is not None
        assert (expected.epoch, expected.body.decision) == (1, reply.body.data["decision"]["decision"])
    print(f"a plan of {3 * lease:.1f} s under a lease of {lease:.1f} s; {number} orders, the slowest {longest:.2f} s")
