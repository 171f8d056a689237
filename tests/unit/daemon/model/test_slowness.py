"""Causes of slow executors from the figures of agents."""

from __future__ import annotations

import msgspec
import pytest

from rechannel.daemon.model.slowness import CpuShares, cpu_shares, find_cause
from rechannel.wire.codes import SlowCause
from rechannel.wire.measurements import AgentWindow
from unit.daemon.fakes import APP, window


@pytest.mark.parametrize(
    ("shares", "cause"),
    [
        (CpuShares(), SlowCause.SLOW),
        (CpuShares(throttled=0.05, limit=1.0), SlowCause.THROTTLED),
        (CpuShares(throttled=0.04, stolen=0.04, busy=0.9, others=0.9), SlowCause.SLOW),
        (CpuShares(stolen=0.05), SlowCause.STOLEN),
        (CpuShares(busy=0.95, others=0.2), SlowCause.BUSY),
        (CpuShares(throttled=0.5, stolen=0.5, busy=1.0, others=0.5), SlowCause.THROTTLED),
        (CpuShares(stolen=0.5, busy=1.0, others=0.5), SlowCause.STOLEN),
    ],
)
def test_the_cause_of_shares(shares: CpuShares, cause: SlowCause) -> None:
    assert find_cause(shares) == cause


def test_a_node_that_the_application_itself_uses_up_is_no_cause() -> None:
    assert find_cause(CpuShares(busy=1.0, others=0.1)) == SlowCause.SLOW


def node(**changes: float) -> AgentWindow:
    """Five seconds of a node of 2 cores, with two executors of the application that use 3 CPU seconds each."""
    two = [*window(0).executors, *window(1).executors]
    return msgspec.structs.replace(window(0), cores=2, executors=two, **changes)


def test_shares_are_of_the_time_and_of_the_cores() -> None:
    first = node(node_cpu=8.0, stolen=1.0)
    limited = msgspec.structs.replace(first.executors[0], throttled=2.0, cpu_limit=0.5)
    windows = [msgspec.structs.replace(first, executors=[limited, first.executors[1]]), node(node_cpu=10.0)]
    shares = cpu_shares(windows, APP, "0")
    assert (shares.throttled, shares.stolen, shares.busy) == pytest.approx((0.2, 0.05, 0.9))
    assert shares.others == pytest.approx((18.0 - 2 * 6.0) / 20.0), "without both executors of the application"


@pytest.mark.parametrize("windows", [[], [window(1)], [msgspec.structs.replace(window(0), start=2.0, end=1.0)]])
def test_without_figures_no_share_is_known(windows: list[AgentWindow]) -> None:
    assert cpu_shares(windows, APP, "0") == CpuShares()
    assert cpu_shares([window(0)], "another", "0") == CpuShares()


def test_shares_of_impossible_figures_are_bounded() -> None:
    usage = msgspec.structs.replace(window(0).executors[0], throttled=1e30, jvm_cpu=-1e30)
    claims = msgspec.structs.replace(window(0), executors=[usage], stolen=-1e30, node_cpu=1e30, cores=-(2**53))
    shares = cpu_shares([claims] * 3, APP, "0")
    assert (shares.throttled, shares.stolen, shares.busy, shares.others) == (1.0, 0.0, 1.0, 1.0)
