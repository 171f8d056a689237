"""Every default is promised: this table is changed knowingly, together with CHANGELOG.md."""

from __future__ import annotations

import dataclasses

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings

DEFAULTS = {
    "cluster.name": "default",
    "redis.url": "redis://127.0.0.1:6379/0",
    "redis.username": "",
    "redis.password_file": "",
    "redis.tls_ca_file": "",
    "redis.tls_certificate_file": "",
    "redis.tls_key_file": "",
    "redis.sentinel_username": "",
    "redis.sentinel_password_file": "",
    "redis.timeout": 2.0,
    "signing.private_key_file": "",
    "signing.public_key_file": "",
    "agent.node": "",
    "agent.sample": 1.0,
    "agent.window": 5.0,
    "agent.buffered_windows": 120,
    "agent.metrics": "",
    "agent.stream_rows": 20000,
    "link.directory": "",
    "link.poll": 0.1,
    "link.poll_moving": 0.005,
    "link.event_log_bytes": 16777216,
    "link.deadline_batches": 6,
    "link.deadline_seconds": 600.0,
    "link.report": 1.0,
    "link.spread": True,
    "reschedule.mode": "observe",
    "reschedule.timeout": 300.0,
    "reschedule.settle": 10.0,
    "reschedule.settle_windows": 1,
    "reschedule.overload_utilization": 0.95,
    "reschedule.overload_duration": 2.0,
    "reschedule.overload_windows": 3,
    "reschedule.overload_release": 0.85,
    "reschedule.timeout_cooldown": 0.0,
    "reschedule.executors_cooldown": 0.0,
    "reschedule.overload_cooldown": 300.0,
    "reschedule.excluded": (),
    "reschedule.off_peak": (),
    "reschedule.time_zone": "UTC",
    "reschedule.moves_per_hour": 0,
    "reschedule.agreements": 2,
    "reschedule.agreement_overlap": 0.5,
    "reschedule.costly": 30.0,
    "reschedule.costly_share": 0.75,
    "reschedule.policy": "adaptive",
    "reschedule.drain_policy": "fair-redistribution",
    "reschedule.windows": 3,
    "reschedule.batches": 3,
    "reschedule.slow_ratio": 1.25,
    "reschedule.warm_up": 120.0,
    "reschedule.forecast": True,
    "gate.min_gain": 0.1,
    "gate.min_step": 0.03,
    "gate.horizon": 600.0,
    "gate.cooldown": 300.0,
    "gate.move_cost": 1.0,
    "gate.load_rate": 50000000.0,
    "gate.max_utilization": 0.95,
    "migration.moves_per_executor": 1,
    "migration.max_moves": 200,
    "migration.moves_per_batch": 32,
    "migration.bytes_per_batch": 4000000000.0,
    "migration.max_replay": 100,
    "migration.overlap": True,
    "migration.settle_batches": 5,
    "migration.rollback": True,
    "migration.rollback_limit": 0.25,
    "controller.name": "",
    "controller.lease": 15.0,
    "controller.observe": 1.0,
    "controller.audit_file": "",
    "controller.require_reason": False,
    "controller.listen": "",
    "controller.placement_ttl": 120.0,
}


def test_every_default_is_pinned():
    settings = dataclasses.asdict(load(None, {}))
    assert settings.pop("policies") == {}
    assert {
        f"{name}.{field}": value for name, fields in settings.items() for field, value in fields.items()
    } == DEFAULTS


def test_a_default_keeps_its_own_bounds():
    settings = Settings()
    for name, value in DEFAULTS.items():
        section, _, field = name.partition(".")
        rule = {item.name: item.metadata for item in dataclasses.fields(getattr(settings, section))}[field]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            low, high = rule["bounds"]
            assert low is not None, f"{name} has no bound"
            assert low <= value, name
            assert high is None or value <= high, name
        assert not rule["choices"] or value in rule["choices"], name
