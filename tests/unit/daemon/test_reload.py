"""A controller goes on with other settings: all their parts, at once, and without a restart."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

from rechannel.conf.loader import load
from rechannel.conf.reload import ReloadSignal, merged
from rechannel.conf.settings import Settings
from rechannel.daemon import service
from rechannel.daemon.control.controller import Controller
from rechannel.daemon.control.leadership import LeaderElection
from rechannel.wire.signing import Signer
from unit.daemon.fake_store import FakeClock, FakeStore
from unit.daemon.fakes import CONFIG, World, app, cycle, decide, decisions, go_on

SECTIONS = tuple(type(getattr(CONFIG, item.name)) for item in dataclasses.fields(Settings) if item.name != "policies")


def other(**variables: str) -> Settings:
    result = load(None, {f"RECHANNEL_{name}": value for name, value in variables.items()})
    return merged(CONFIG, result)


def holders(thing: Any, expected: tuple[type, ...], seen: set[int]) -> list[tuple[Any, Any]]:
    """Every object of ours that holds such a value, reached from one, with the value."""
    if id(thing) in seen or not type(thing).__module__.startswith("rechannel.") or isinstance(thing, expected):
        return []
    seen.add(id(thing))
    result = []
    for value in list(vars(thing).values()) if hasattr(thing, "__dict__") else []:
        items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            if isinstance(item, expected):
                result.append((thing, item))
            result += holders(item, expected, seen)
    return result


def test_no_part_of_the_controller_keeps_the_old_settings(leader: Controller) -> None:
    settings = other(GATE__COOLDOWN="5", RESCHEDULE__SETTLE="3")
    assert len(holders(leader, (Settings,), set())) >= 3
    leader.reload(settings)
    stored = [
        type(part).__name__
        for part, value in holders(leader, (Settings, *SECTIONS), set())
        # The lead lives by the lease, by Redis and by its name, none of which is live.
        if not isinstance(part, LeaderElection) and value != settings and value not in vars(settings).values()
    ]
    assert stored == []


def test_what_is_decided_next_is_decided_by_the_new_ones(leader: Controller, store: FakeStore, world: World) -> None:
    leader.reload(other(RESCHEDULE__MODE="observe", GATE__MIN_GAIN="0.02"))
    leader.decide_all()
    assert decisions(store)[-1].result == "planned"
    leader.reload(other(RESCHEDULE__MODE="apply", RESCHEDULE__POLICY="even"))
    go_on(world, 5)
    leader.decide_all()
    assert decisions(store)[-1].policy == "even"


def test_a_migration_under_way_goes_on(leader: Controller, world: World, store: FakeStore) -> None:
    decide(leader, apply=True)
    assert app(leader).migrations.running is not None
    leader.reload(other(GATE__COOLDOWN="5", MIGRATION__MAX_MOVES="1"))
    world.obey()
    cycle(leader)
    assert app(leader).migrations.running is None
    assert leader.settings.gate.cooldown == app(leader).migrations.cooldown_left(store.clock()) == 5


def test_settings_are_not_changed_amid_a_cycle(leader: Controller) -> None:
    done = threading.Event()
    taking = threading.Thread(target=lambda: (leader.reload(other(GATE__COOLDOWN="5")), done.set()))
    with leader._lock:
        taking.start()
        assert not done.wait(0.05)
        assert leader.settings is CONFIG
    taking.join(10)
    assert leader.settings.gate.cooldown == 5


def test_a_hangup_reaches_a_running_controller(monkeypatch: Any, clock: FakeClock) -> None:
    store, stop = FakeStore(clock), threading.Event()
    monkeypatch.setattr(service, "Store", lambda *_: store)
    monkeypatch.setattr(service, "signer_of", lambda _: Signer(Ed25519PrivateKey.generate()))
    request, taken = threading.Event(), []
    monkeypatch.setattr(Controller, "reload", lambda self, settings: (taken.append(settings), stop.set()))
    request.set()
    started = load(None, {"RECHANNEL_CONTROLLER__NAME": "a"})
    new = load(None, {"RECHANNEL_CONTROLLER__NAME": "b", "RECHANNEL_RESCHEDULE__TIMEOUT": "9"})
    with capture_logs() as lines:
        service.run_controller(started, stop, reload_signal=ReloadSignal(request, lambda: new))
    assert [(item.reschedule.timeout, item.controller.name) for item in taken] == [(9, "a")]
    message = {line["field"]: line["event"] for line in lines if "field" in line}
    assert message == {"reschedule.timeout": "setting-applied", "controller.name": "setting-needs-restart"}
