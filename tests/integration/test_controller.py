"""Controller and command line against a real server: asked and answered, taken over, emptied, refused."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from integration.common import GATE, end, events, leading, raw, run, run_json, start, state, until
from unit.daemon.fakes import APP, World

from rechannel.conf.settings import Settings
from rechannel.daemon.cli import history
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import DesiredPlacement, MoveTransition
from rechannel.wire.redis.errors import StoreRefusedError
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Verifier
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300), pytest.mark.usefixtures("lines")]
SECTIONS = {"redis": {"timeout": 0.9}, "controller": {"name": "test", "lease": 6}, "gate": GATE}


# -- asked and answered --


def test_plan_and_rebalance(led: None, world: World, store: Store, settings: Settings) -> None:
    planned = run_json("plan")
    assert set(planned) == {"code", "sentence", "application", "decision"}
    assert (planned["code"], planned["application"], planned["decision"]["result"]) == (0, APP, "planned")
    assert planned["sentence"].startswith("would move ")
    assert store.get(keys.DESIRED, APP) is None
    dry = run_json("rebalance", "--reason", "a look")
    assert dry["decision"]["result"] == "planned"
    assert store.get(keys.DESIRED, APP) is None

    done = run_json("rebalance", "--apply", "--reason", "skewed")
    assert done["decision"]["result"] == "applied"
    result = store.get(keys.DESIRED, APP)
    assert result is not None
    Verifier.from_file(settings.signing.public_key_file).check(result)
    assert isinstance(result.body, DesiredPlacement)
    assert [move.move for move in result.body.moves] == [move["move"] for move in done["decision"]["moves"]]

    again = run_json("rebalance", "--apply", "--force", code=4)
    assert again["decision"]["reason"] == "migration-running"
    world.obey("drained")
    until(lambda: "is over" in state(store).last_sentence)  # type: ignore[union-attr]
    answer = run_json("plan", code=3)
    assert answer["decision"]["reason"] == "cooldown"

    entries = run_json("history")["entries"]
    assert [entry["result"] for entry in entries] == ["planned", "planned", "applied", "not-ready", "refused"]
    assert entries[2]["notes"][0].endswith(": skewed")
    text = run("plan", code=3).stdout
    assert "refused by cooldown" in text
    assert "127.0.0.2" in text


def test_a_policy_is_asked_for_by_name(led: None, world: World, store: Store) -> None:
    planned = run_json("plan", "--policy", "round-robin")
    assert (planned["decision"]["policy"], planned["decision"]["result"]) == ("round-robin", "planned")
    assert run_json("plan")["decision"]["policy"] == "adaptive"
    done = run_json("rebalance", "--policy", "round-robin", "--apply", "--force", "--reason", "a test")
    assert [load["partitions_after"] for load in done["decision"]["executors"]] == [3, 3, 3, 3]
    for sentence in (("plan",), ("rebalance", "--apply")):
        refused = run_json(*sentence, "--policy", "magic", code=1)
        assert refused["error"].startswith("no policy is called 'magic'; known are adaptive, aniello-online, ")
    entries = run_json("history")["entries"]
    assert [entry["policy"] for entry in entries] == ["round-robin", "adaptive", "round-robin"]
    assert "applied (operator by " in run("history").stdout
    assert ", round-robin): moving " in run("history").stdout


def test_a_plan_is_saved_and_applied_later_and_undone(
    led: None, world: World, store: Store, tmp_path: Path, settings: Settings
) -> None:
    path = tmp_path / "plan.json"
    message = run("plan", "--save", path).stdout
    assert "expected cost: " in message
    assert message.endswith(f"saved in {path}; `rechannel apply {path}` carries it out\n")
    saved = json.loads(path.read_text())
    assert (saved["format"], saved["application"], saved["runs"]) == (1, APP, {"q1": "run-1"})

    done = run_json("apply", path, "--reason", "tonight")
    assert (done["decision"]["result"], done["decision"]["policy"]) == ("applied", "saved plan")
    assert done["decision"]["notes"][0].endswith(": tonight")
    moves = [(move["partition"], move["source"], move["target"]) for move in saved["moves"]]
    assert [(move["partition"], move["source"], move["target"]) for move in done["decision"]["moves"]] == moves

    for partition, _, target in moves:
        world.placement[partition] = target
    world.obey("drained")
    world.measure()
    until(lambda: "is over" in state(store).last_sentence)  # type: ignore[union-attr]
    assert "moving" in run_json("rollback", "--reason", "no")["sentence"]
    last = run_json("history")["entries"][-1]
    assert (last["trigger"], last["rollback_of"]) == ("rollback", done["decision"]["decision"])
    assert [(move["partition"], move["target"]) for move in last["moves"]] == [(part, back) for part, back, _ in moves]


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"executors": {"0": "127.0.0.2"}}, "executor 1 (127.0.0.3) joined, 2 (127.0.0.4) joined"),
        ({"runs": {"q1": "another"}}, "query name-of-q1 was started again since"),
        ({"format": 2}, "format: 2; this release reads 1"),
        ({"cluster": "other"}, "cluster: the plan is for 'other', this is 'default'"),
        ({"moves": []}, "moves: the plan has none"),
        ({"moves": [{"query": "q1"}]}, "missing required field `stage` - at `$.moves[0]`"),
        ({"application": "gone"}, "unknown application gone"),
    ],
)
def test_a_plan_that_fits_no_more_is_refused(
    led: None, world: World, store: Store, tmp_path: Path, change: dict[str, Any], phrase: str
) -> None:
    path = tmp_path / "plan.json"
    run("plan", "--save", path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert phrase in run("apply", path, code=1).stderr
    assert store.get(keys.DESIRED, APP) is None


def test_a_scheduled_plan_outlives_its_controller(
    world: World, store: Store, tmp_path: Path, settings: Settings
) -> None:
    path = tmp_path / "plan.json"
    tomorrow = time.strftime("%a", time.gmtime(time.time() + 2 * 86_400))
    with leading(settings, lambda: state(store)):
        until(lambda: run_json("status")["applications"])
        run("plan", "--save", path)
        world.ready()
        later = run_json("apply", path, "--at", f"{tomorrow} 02:00-05:00", "--reason", "quiet then")
        soon = run_json("apply", path, "--at", "00:00-24:00", "--reason", "now")
        assert "is scheduled as plan-" in later["sentence"]
    scheduled = {plan["scheduled_plan"] for plan in run_json("status")["scheduled_plans"]}
    assert later["scheduled_plan"] in scheduled
    raw(store).delete(store.keys(keys.STATE))
    with leading(settings, lambda: state(store)):
        world.ready()
        done = until(
            lambda: [it for it in run_json("history", "--trigger", "scheduled")["entries"] if it["type"] == "decision"]
        )
        assert (done[-1]["result"], done[-1]["operator_reason"]) == ("applied", "now")
        assert soon["scheduled_plan"] not in run("status").stdout
        assert f"plan {later['scheduled_plan']}: " in run("status").stdout
        explained = run("explain", done[-1]["decision"]).stdout
        assert "trigger:   the time of a scheduled plan had come, asked by " in explained
        assert "frees executor 0" in explained
        assert run_json("explain")["decision"]["decision"]
        assert "is canceled by " in run("cancel", later["scheduled_plan"], "--reason", "no need").stdout
        assert "no plan x is scheduled" in run("cancel", "x", code=1).stderr
        assert run_json("status")["scheduled_plans"] == []
    assert "unknown decision x" in run("explain", "x", code=1).stderr


def test_what_cannot_be_saved_or_read(led: None, world: World, tmp_path: Path) -> None:
    assert "cannot be written" in run("plan", "--save", tmp_path / "none" / "plan.json", code=1).stderr
    (tmp_path / "bad.json").write_text("{")
    assert "not a plan of `rechannel plan --save`" in run("apply", tmp_path / "bad.json", code=1).stderr
    run("apply", tmp_path / "absent.json", code=2)
    assert "moved anything in app-1" in run("rollback", code=3).stderr


def test_pause_and_resume(led: None, world: World, store: Store) -> None:
    assert run_json("pause") == {"code": 0, "sentence": "paused", "paused": True}
    assert store.is_paused()
    refused = run_json("rebalance", "--apply", code=1)
    assert refused["decision"]["reason"] == "paused"
    assert "paused" in run("status").stdout
    assert run("resume").stdout == "resumed\n"
    assert not store.is_paused()


def test_status(world: World, led: None, store: Store) -> None:
    world.report()  # a driver that reported long ago is silent
    result = run_json("status")
    assert set(result) == {"at", "controller", "applications", "rejected_messages", "drains", "scheduled_plans"}
    assert result["controller"]["epoch"] == 1
    (application,) = result["applications"]
    assert application["readiness"]["ready"] is True
    first = application["executors"][0]
    assert (first["node"], first["partitions"], first["cpu"], first["python_cpu"]) == ("127.0.0.2", 6, 0.4, 0.2)
    assert first["utilization"] == pytest.approx(0.14, rel=0.2)  # it falls with the time since the last batch
    assert first["arrival_rate"] > 0
    (query,) = application["queries"]
    assert query["batch_seconds"] == pytest.approx(5)
    assert query["stages"][0]["placement"] == {
        "0": [0, 1, 2, 3, 4, 5],
        "1": [6, 7],
        "2": [8, 9],
        "3": [10, 11],
    }
    world.report()
    until(lambda: "ready: 12 partitions" in run("status").stdout, "the leader's own sentence")
    text = run("status").stdout
    assert application["streams"] == {}
    for sentence in (
        "leads in epoch 1",
        "mode observe",
        "Observe mode: decisions are recorded, not applied.",
        "127.0.0.5",
        "name-of-q1",
        "ready: 12 partitions",
    ):
        assert sentence in text


def test_status_of_a_part(world: World) -> None:
    one = run_json("status", "--node", "127.0.0.3")["applications"][0]
    assert [row["executor"] for row in one["executors"]] == ["1"]
    assert run_json("status", "--query", "name-of-q1")["applications"][0]["queries"][0]["query"] == "q1"
    for arguments, sentence in (
        (("--node", "x"), "unknown node x; known are 127.0.0.2, 127.0.0.3, 127.0.0.4, 127.0.0.5"),
        (("--query", "x"), "unknown query x; known are name-of-q1"),
        (("--application", "x"), "unknown application x; known are app-1"),
    ):
        assert run_json("status", *arguments, code=1) == {"error": sentence, "code": 1}
        assert run("status", *arguments, code=1).stderr == f"rechannel: {sentence}\n"


def test_status_without_anything(store: Store) -> None:
    result = run_json("status")
    assert (result["controller"], result["applications"]) == (None, [])
    text = run("status").stdout
    assert "no controller leads" in text
    assert "no application reports" in text


def test_several_applications(led: None, world: World, store: Store) -> None:
    World(store, time.time, "app-2").ready()  # type: ignore[arg-type]
    until(lambda: (result := state(store)) is not None and len(result.applications) == 2)
    assert "app-1, app-2" in run("plan", code=1).stderr
    assert "unknown application x; known are app-1, app-2" in run_json("plan", "--application", "x", code=1)["error"]
    assert run_json("plan", "--application", "app-2")["application"] == "app-2"


def test_history_has_the_journal_and_can_be_followed(led: None, world: World, store: Store, settings: Settings) -> None:
    run("plan")
    author = EnvelopeFactory("default", "link", time.time)

    def journal(after: str) -> None:
        line = MoveTransition(
            move="d.0",
            decision="d",
            query="q1",
            stage=0,
            partition=3,
            source="0",
            target="1",
            step=0,
            before="planned",
            after=after,
            reason="ready",
            evidence="",
            batch=9,
            at=time.time(),
        )
        store.append(keys.JOURNAL, APP, author.envelope(line, ttl=60, application=APP))

    journal("prepared")
    entries = run_json("history")["entries"]
    assert [(entry["type"], entry["application"]) for entry in entries] == [("decision", APP), ("move", APP)]
    assert entries[1]["after"] == "prepared"
    assert len(run_json("history", "--limit", "1")["entries"]) == 1
    assert len(run_json("history", "--query", "name-of-q1")["entries"]) == 2
    assert "unknown query x; known are name-of-q1" in run("history", "--query", "x", code=1).stderr
    assert "planned → prepared" in run("history").stdout

    reader = history.HistoryReader(Store(settings.redis, settings.cluster.name), time.time)
    assert len(reader.first(50)) == 2
    stop = threading.Event()
    journal("steered")
    (more,) = next(reader.follow(stop))
    assert more["after"] == "steered"
    stop.set()
    assert list(reader.follow(stop)) == []


# -- taken over, emptied --


def test_a_stand_by_takes_over_from_a_leader_that_vanishes(
    config: Path, group: ProcessGroup, store: Store, world: World
) -> None:
    start(group, "first", "controller", config)
    until(lambda: state(store), "a leader")
    world.ready()  # starting took its time
    done = run_json("rebalance", "--apply")
    world.obey("steered")
    other = start(group, "other", "controller", config)
    group.kill("first")
    until(lambda: (result := state(store)) is not None and result.epoch == 2, "the stand-by to lead")
    result = until(lambda: (at := store.get(keys.DESIRED, APP)) is not None and at.epoch == 2 and at)
    assert result.body.decision == done["decision"]["decision"]
    world.ready()
    assert run_json("rebalance", "--apply", code=4)["decision"]["reason"] == "migration-running"
    end(other)
    assert {"controller-starts", "lead-taken", "migration-adopted", "controller-ends"} <= set(events(other))
    assert raw(store).get(store.keys(keys.LEASE)) is None, "the lease is given back"


def test_an_emptied_redis_is_filled_again_under_a_higher_epoch(led: None, world: World, store: Store) -> None:
    done = run_json("rebalance", "--apply")
    world.obey("steered")
    run("pause")
    raw(store).flushall()
    world.accepted_epoch = 7
    world.report()
    result = until(lambda: (at := store.get(keys.DESIRED, APP)) is not None and at.epoch >= 8 and at)
    assert (result.body.decision, result.body.hold) == (done["decision"]["decision"], True)
    assert store.is_paused()
    world.ready()
    assert run_json("resume")["paused"] is False


def test_a_controller_waits_for_a_redis_that_is_away(
    config: Path, group: ProcessGroup, server: RedisServer, tmp_path: Path
) -> None:
    config.write_text(config.read_text().replace(str(server.socket_path), str(tmp_path / "not-yet.sock")))
    process = start(group, "early", "controller", config)
    until(lambda: "redis-away" in events(process), "a warning")
    assert events(process)[:2] == ["configuration", "redis-away"]
    assert '"level": "warning"' in process.log.read_text().splitlines()[1]
    (tmp_path / "not-yet.sock").symlink_to(server.socket_path)
    until(lambda: "lead-taken" in events(process), "the lead")
    end(process)


# -- refused --


def test_an_unsigned_desired_placement_is_not_adopted(world: World, store: Store, settings: Settings) -> None:
    body = DesiredPlacement(decision="evil", runs={}, moves=[])
    store.put(keys.DESIRED, APP, EnvelopeFactory("default", "x").envelope(body, ttl=100, application=APP))
    with leading(settings, lambda: state(store)):
        world.ready()
        assert run_json("rebalance", "--apply")["decision"]["result"] == "applied"


def test_nobody_answers(world: World) -> None:
    for command in (("plan",), ("rebalance", "--apply"), ("pause",), ("resume",)):
        result = run_json(*command, "--wait", "0.2", code=6)
        assert result == {
            "error": "no controller answered within 0.2 s: none leads; start one with `rechannel controller`",
            "code": 6,
        }


@pytest.mark.parametrize("command", ["status", "plan", "pause", "history", "controller"])
def test_a_wrong_password(config: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "password").write_text("wrong\n")
    assert "check redis.username, redis.password_file" in run(command, code=5).stderr
    if command != "controller":
        assert run_json(command, code=5)["code"] == 5


@pytest.mark.parametrize("command", ["status", "plan", "pause", "history"])
def test_a_wrong_address(config: Path, command: str) -> None:
    config.write_text(config.read_text().replace("unix://", "unix:///nowhere"))
    assert "check redis.url" in run(command, code=5).stderr
    assert run_json(command, code=5)["code"] == 5


def test_an_old_redis_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.Redis, "info", lambda *_: {"redis_version": "6.2.14"})
    with pytest.raises(StoreRefusedError, match=r"version 6\.2\.14; 7\.0 or newer"):
        store.check()
    assert "7.0 or newer is needed" in run("status", code=5).stderr
