"""Reload of a running daemon: live settings, settings that need a restart, mistakes."""

from __future__ import annotations

import threading

import pytest
import structlog
from structlog.testing import capture_logs

from rechannel.conf import reload
from rechannel.conf.reload import Reloader, ReloadSignal
from rechannel.conf.settings import Settings, SettingsError, fields
from unit.conf.sources import load_text

LIVE_SECTIONS = ("reschedule", "gate", "migration")
LIVE_FIELDS = ("controller.require_reason",)


def test_live_sections_and_fields():
    for name, item in fields().items():
        assert item.metadata["live"] == (name.partition(".")[0] in LIVE_SECTIONS or name in LIVE_FIELDS), name


class Daemon:
    """A daemon that reloads its settings."""

    def __init__(self) -> None:
        self.file = Settings()
        self.mistakes: list[str] = []
        self.examined: list[str] = []
        self.reread = ReloadSignal(threading.Event(), self._again)
        log = structlog.get_logger("test")
        self.reloader = Reloader(Settings(), self.reread, log, lambda _: self.examined)

    def _again(self):
        if self.mistakes:
            raise SettingsError(self.mistakes)
        return self.file

    def hang_up(self):
        """Returns what is taken and the log lines."""
        self.reread.requested.set()
        with capture_logs() as lines:
            return self.reloader.poll(), lines


@pytest.fixture
def daemon():
    return Daemon()


def test_nothing_is_reloaded_without_a_request(daemon):
    daemon.file = load_text(GATE__COOLDOWN="5")
    assert daemon.reloader.poll() is None
    assert Reloader(Settings(), None, structlog.get_logger()).poll() is None
    taken, _ = daemon.hang_up()
    assert taken.gate.cooldown == 5
    assert daemon.reloader.poll() is None


def test_live_fields_are_applied_and_logged_one_by_one(daemon):
    daemon.file = load_text(GATE__COOLDOWN="5", RESCHEDULE__MODE="apply", POLICIES__ADAPTIVE__MODE="light")
    taken, lines = daemon.hang_up()
    assert taken == daemon.file
    assert [(line["field"], line["before"], line["after"]) for line in lines if line["event"] == "setting-applied"] == [
        ("reschedule.mode", "observe", "apply"),
        ("gate.cooldown", 300.0, 5.0),
        ("policies.adaptive.mode", None, "light"),
    ]
    assert lines[-1] == {
        "event": "configuration-read-again",
        "log_level": "info",
        "applied": 3,
        "restart_needed": 0,
    }


def test_fields_that_need_a_restart_are_logged_each_time(daemon):
    daemon.file = load_text(REDIS__URL="redis://h/1", CLUSTER__NAME="other", GATE__COOLDOWN="5", LINK__SPREAD="false")
    for first in (True, False):
        taken, lines = daemon.hang_up()
        assert (taken is not None) is first
        if taken is not None:
            assert (taken.redis, taken.cluster, taken.gate.cooldown) == (Settings().redis, Settings().cluster, 5)
        message = [line["sentence"] for line in lines if line["event"] == "setting-needs-restart"]
        assert message == ["cluster.name: restart needed", "redis.url: restart needed"]


def test_a_setting_returns_to_its_default(daemon):
    daemon.file = load_text(POLICIES__ADAPTIVE__MODE="light")
    daemon.hang_up()
    daemon.file = Settings()
    taken, lines = daemon.hang_up()
    assert taken == Settings()
    assert (lines[0]["before"], lines[0]["after"]) == ("light", None)


@pytest.mark.parametrize("where", ["mistakes", "examined"])
def test_a_configuration_with_errors_changes_nothing_and_logs_them_all(daemon, where):
    daemon.file = load_text(GATE__COOLDOWN="5")
    setattr(daemon, where, ["a.b: wrong", "c.d: wrong too"])
    taken, lines = daemon.hang_up()
    assert taken is None
    assert [line.get("sentence") for line in lines] == ["a.b: wrong", "c.d: wrong too", "nothing was changed"]
    setattr(daemon, where, [])
    assert daemon.hang_up()[0].gate.cooldown == 5


def test_changes_of_other_daemons_settings_are_ignored():
    new = load_text(AGENT__WINDOW="6", AGENT__NODE="n", LINK__SPREAD="false", GATE__COOLDOWN="5")
    assert [change.field for change in reload.changes(Settings(), new)] == ["agent.window", "gate.cooldown"]
