"""Limit of executors: who sets it, and who lifts it without the link."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from unittest.mock import MagicMock, create_autospec

import pytest

from rechannel.migration.spark import adapter as adapter_module
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.executor_control import ExecutorControl
from rechannel.migration.spark.gateway import SparkCallError
from rechannel.migration.spark.hooks import WATCHDOG_TICK, Watchdog

WITHOUT_LINK = 100


def new_watchdog():
    return create_autospec(Watchdog, instance=True)


class Driver:
    """An executor control on a context and a watchdog that record what is asked of them."""

    def __init__(self):
        self.context = MagicMock()
        self.watchdog = new_watchdog()
        self.now = 1000.0
        self.control = ExecutorControl(MagicMock(), self.context, lambda: self.watchdog, lambda: self.now)

    def pop_targets(self):
        """Return the targets asked for since the last call."""
        targets = [request.args[0] for request in self.context.requestTotalExecutors.call_args_list]
        self.context.requestTotalExecutors.reset_mock()
        return targets

    def lifted_to(self):
        """Return to which numbers the watchdog lifts the limit."""
        return [added.args[3][1] for added in self.watchdog.add.call_args_list]


@pytest.fixture
def driver():
    return Driver()


@pytest.mark.parametrize(("idle", "next_targets"), [(True, [3]), (False, [2, 3])])
def test_a_release_sets_the_target_and_has_the_watchdog_lift_it_once(driver, idle, next_targets):
    driver.context.schedulerBackend().killExecutor.return_value = idle
    assert driver.control.release("1", 2, WITHOUT_LINK) is idle
    assert driver.control.release("1", 2, WITHOUT_LINK) is idle
    assert driver.pop_targets() == [3, 3]
    assert driver.lifted_to() == [WITHOUT_LINK]
    for most in (2, 3):  # killing one has lowered the target by one
        driver.control.limit_executors(most, WITHOUT_LINK)
    assert driver.pop_targets() == next_targets


def test_a_limit_is_set_once_and_again_after_an_error(driver):
    driver.context.requestTotalExecutors.side_effect = [RuntimeError("no"), True]
    with pytest.raises(SparkCallError):
        driver.control.limit_executors(2, WITHOUT_LINK)
    assert driver.control.limit_executors(2, WITHOUT_LINK)
    assert not driver.control.limit_executors(2, WITHOUT_LINK)
    assert driver.pop_targets() == [2, 2]


def test_a_new_watchdog_gets_the_limit_and_its_clean_up_until_the_limit_is_lifted(driver):
    driver.control.renew_limit()
    assert driver.pop_targets() == []
    driver.control.limit_executors(2, WITHOUT_LINK)
    driver.watchdog = new_watchdog()
    driver.control.renew_limit()
    assert (driver.pop_targets(), driver.lifted_to()) == ([2, 2], [WITHOUT_LINK])
    driver.control.lift_limit(WITHOUT_LINK)
    driver.watchdog = new_watchdog()
    driver.control.renew_limit()
    assert (driver.pop_targets(), driver.lifted_to()) == ([WITHOUT_LINK], [])


def test_a_limit_is_set_again_while_an_earlier_watchdog_may_lift_it(driver):
    driver.control.limit_executors(2, WITHOUT_LINK)
    driver.watchdog = new_watchdog()
    driver.control.renew_limit()
    driver.pop_targets()
    for _ in range(20):
        driver.now += 5.0
        assert not driver.control.limit_executors(2, WITHOUT_LINK), "no change, and no line in the log"
    targets = driver.pop_targets()
    assert set(targets) == {2} and 2 * WATCHDOG_TICK < 5 * (len(targets) + 1) <= 3 * WATCHDOG_TICK


@pytest.mark.parametrize("lifted", [True, False])
def test_the_watchdog_goes_on_if_the_limit_could_not_be_lifted(driver, lifted):
    driver.control.limit_executors(2, WITHOUT_LINK)
    driver.context.requestTotalExecutors.side_effect = None if lifted else RuntimeError("no answer within 30 s")
    with contextlib.nullcontext() if lifted else pytest.raises(SparkCallError):
        driver.control.lift_limit(WITHOUT_LINK)
    adapter = MagicMock(_watchdog=driver.watchdog, _listener=None, executor_control=driver.control)
    adapter.locality_wait.restore_failed = False
    SparkAdapter.stop_watchdog(adapter)
    assert driver.watchdog.stop.called is lifted
    driver.context.requestTotalExecutors.side_effect = None
    driver.control.limit_executors(3, WITHOUT_LINK)
    assert not driver.control.lift_failed, "a new drain"


def test_each_opening_of_the_event_stream_renews_the_limit_under_its_watchdog(monkeypatch, tmp_path):
    monkeypatch.setattr(adapter_module, "EventFilter", MagicMock())
    opened = []
    monkeypatch.setattr(adapter_module, "Watchdog", lambda *_: opened.append(new_watchdog()) or opened[-1])
    adapter = MagicMock()
    adapter.executor_control.renew_limit.side_effect = lambda: opened.append(("renewed", adapter._watchdog))
    for _ in range(2):
        SparkAdapter.start_event_stream(adapter, tmp_path, 1000)
    assert opened == [opened[0], ("renewed", opened[0]), opened[2], ("renewed", opened[2])]


# -- standalone masters --


class Masters:
    """The RPC environment of a driver with several masters, and a clock; some masters do not answer."""

    def __init__(self, silent):
        self.now, self.looked_up, self.silent = 1000.0, [], silent

    def find(self, address):
        self.looked_up.append(address)
        if address.rpartition("@")[2] in self.silent:
            self.now += 5.0
            raise RuntimeError("Future timed out after [5 seconds]")
        workers = [SimpleNamespace(host=lambda: "a", isAlive=lambda: True)]
        alive = SimpleNamespace(status=lambda: Text("ALIVE"), workers=lambda: workers)
        return SimpleNamespace(askSync=lambda *_: alive)


class Text(str):
    """A Java object that is shown as this text."""

    toString = str.__str__  # noqa: N815


def test_a_master_that_does_not_answer_costs_seconds_once_a_minute():
    masters, gateway, context = Masters({"b:7077"}), MagicMock(), MagicMock()
    gateway.jvm.org.apache.spark.rpc.RpcTimeout.return_value.awaitResult.side_effect = masters.find
    rpc = context.schedulerBackend.return_value.rpcEnv.return_value
    rpc.asyncSetupEndpointRefByURI.side_effect = lambda address: address
    context.master.return_value = "spark://b:7077,[::1]:7078"
    control = ExecutorControl(gateway, context, lambda: None, lambda: masters.now)
    for _ in range(12):  # a minute
        assert control.worker_hosts() == ["a"]
        masters.now += 4.5
    assert masters.looked_up.count("spark://Master@b:7077") == 1
    masters.now += 10.0
    assert control.worker_hosts() == ["a"]
    assert masters.looked_up[-2:] == ["spark://Master@b:7077", "spark://Master@[::1]:7078"]
    rpc.setupEndpointRef.assert_not_called()  # it waits for two minutes
