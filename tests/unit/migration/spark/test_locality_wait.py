"""Waits for an executor, shortened for a while in the running application."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, create_autospec

import pytest

from rechannel.migration.spark import adapter as adapter_module
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.gateway import LinkError
from rechannel.migration.spark.hooks import Watchdog
from rechannel.migration.spark.locality_wait import LocalityWait

WAIT = "spark.locality.wait"
CASES = [
    pytest.param({}, {WAIT: "1000ms"}, id="Spark's default of three seconds"),
    pytest.param({WAIT: "30s"}, {WAIT: "1000ms"}, id="longer than any batch"),
    pytest.param({WAIT: "500ms"}, {WAIT: "500ms"}, id="shorter"),
    pytest.param({WAIT: "0", f"{WAIT}.process": "1m"}, {WAIT: "0", f"{WAIT}.process": "1000ms"}, id="one level"),
    pytest.param({WAIT: "soon"}, {WAIT: "soon"}, id="unreadable"),
]


class Conf(dict):
    """A SparkConf as py4j shows it."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def remove(self, key: str) -> None:
        del self[key]


class Driver:
    """The waits of an application, and its watchdog with the calls that it would make."""

    def __init__(self, before: dict[str, str]) -> None:
        self.conf = Conf(before)
        self.renew_watchdog()
        self.wait = LocalityWait(SimpleNamespace(conf=lambda: self.conf), lambda: self.watchdog)

    def renew_watchdog(self) -> None:
        self.clean_ups: list[Callable[[], None]] = []
        self.watchdog = create_autospec(Watchdog, instance=True)
        self.watchdog.add.side_effect = self._add
        self.watchdog.withdraw.side_effect = self.clean_ups.remove

    def _add(self, target: Any, owner: str, name: str, *arguments: tuple[str, Any], result: str) -> Any:
        assert (owner, result) == ("org.apache.spark.SparkConf", "org.apache.spark.SparkConf")
        assert {kind for kind, _ in arguments} == {"java.lang.String"}
        self.clean_ups.append(partial(getattr(target, name), *(value for _, value in arguments)))
        return self.clean_ups[-1]

    def lose_link(self) -> None:
        for clean_up in self.clean_ups:
            clean_up()


@pytest.mark.parametrize(("before", "meanwhile"), CASES)
def test_waits_are_shortened_and_given_back(before: dict[str, str], meanwhile: dict[str, str]) -> None:
    driver = Driver(before)
    conf, wait = driver.conf, driver.wait
    for _ in range(2):
        wait.shorten()
        wait.shorten()
        assert conf == meanwhile
        wait.restore()
        wait.restore()
        assert conf == before


def test_a_call_that_fails_late_does_not_make_the_short_wait_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver({WAIT: "30s"})
    conf, wait = driver.conf, driver.wait

    def late(key: str, value: str) -> None:
        conf[key] = value
        raise TimeoutError

    monkeypatch.setattr(conf, "set", late)
    with pytest.raises(LinkError):
        wait.shorten()
    assert wait.is_short
    monkeypatch.undo()
    wait.shorten()
    wait.restore()
    assert (conf, wait.is_short) == ({WAIT: "30s"}, False)


@pytest.mark.parametrize(("before", "meanwhile"), CASES)
def test_the_watchdog_gives_each_wait_back_once_until_the_link_has_done_so(
    before: dict[str, str], meanwhile: dict[str, str]
) -> None:
    driver = Driver(before)
    for _ in range(2):  # two executors are lost
        driver.wait.shorten()
    assert driver.conf == meanwhile
    assert len(driver.clean_ups) == (before != meanwhile)
    driver.lose_link()
    assert driver.conf == before
    driver.wait.shorten()
    driver.wait.restore()
    assert driver.clean_ups == []


def test_a_wait_is_guarded_before_it_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver({WAIT: "30s"})
    driver.watchdog.add.side_effect = LinkError("the JVM is busy")
    with pytest.raises(LinkError):
        driver.wait.shorten()
    assert driver.conf == {WAIT: "30s"}


def test_a_new_watchdog_gets_the_clean_ups_and_the_waits_are_short_again() -> None:
    driver = Driver({WAIT: "30s"})
    driver.wait.renew()
    assert (driver.conf, driver.clean_ups) == ({WAIT: "30s"}, [])
    driver.wait.shorten()
    driver.lose_link()
    driver.renew_watchdog()
    driver.wait.renew()
    assert driver.conf == {WAIT: "1000ms"}
    driver.lose_link()
    assert driver.conf == {WAIT: "30s"}
    driver.wait.restore()
    assert driver.clean_ups == []


@pytest.mark.parametrize("restored", [True, False])
def test_the_watchdog_goes_on_if_the_waits_could_not_be_restored(
    restored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver({WAIT: "30s"})
    driver.wait.shorten()
    control = SimpleNamespace(lift_failed=False)
    adapter = MagicMock(_listener=None, executor_control=control, locality_wait=driver.wait)
    adapter._watchdog = reopened = create_autospec(Watchdog, instance=True)
    SparkAdapter.stop_watchdog(adapter)
    assert reopened.stop.called, "the wait is short, as it should be"
    if restored:
        driver.wait.restore()
    else:
        with monkeypatch.context() as patch, pytest.raises(LinkError):
            patch.setattr(driver.conf, "set", MagicMock(side_effect=RuntimeError("no answer within 30 s")))
            driver.wait.restore()
    adapter._watchdog = driver.watchdog
    SparkAdapter.stop_watchdog(adapter)
    assert driver.watchdog.stop.called is restored
    driver.lose_link()
    assert driver.conf == {WAIT: "30s"}


def test_each_opening_of_the_event_stream_renews_the_waits_under_its_watchdog(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(adapter_module, "EventFilter", MagicMock())
    opened: list[Any] = []
    monkeypatch.setattr(adapter_module, "Watchdog", lambda *_: MagicMock())
    adapter = MagicMock()
    adapter.locality_wait.renew.side_effect = lambda: opened.append(adapter._watchdog)
    for _ in range(2):
        SparkAdapter.start_event_stream(adapter, tmp_path, 1000)
        assert opened.pop() is adapter._watchdog
