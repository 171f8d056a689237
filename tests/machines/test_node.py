"""A node that systemd booted: the agent installed by the page, its service broken; what CI can afford of the suite."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from testbed.processes import ROOT, ProcessGroup
from testbed.redis_server import RedisServer
from tests.machines import services
from tests.machines.installing import AGENT
from tests.machines.machine import HostMachine, MachineError, why_not
from tests.machines.site import page_blocks
from tests.machines.steps import wait_for_state, wait_for_status

problem = why_not("systemd-nspawn", "ip")
pytestmark = [
    pytest.mark.root,
    pytest.mark.redis,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(problem), reason=problem),
]
_CONFIGURATION = """\
[redis]
url = "redis://127.0.0.1:{port}/0"
password_file = "/etc/rechannel/redis.password"
[agent]
node = "node"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with ProcessGroup(tmp_path_factory.mktemp("logs")) as group, RedisServer(group, tcp=True, password="pw") as server:
        yield server


@pytest.fixture(scope="module")
def node(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostMachine]:
    """A node with the user `spark`, Rechannel's agent installed and running."""
    machine = HostMachine("node", tmp_path_factory.mktemp("node"))
    with contextlib.closing(machine):
        try:
            machine.mount()
            machine.boot()
        except (MachineError, TimeoutError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"no machine can be booted here: {error}")
        install, _, _, set_up = page_blocks("Install")
        machine.run("id spark || useradd --system spark")
        machine.run(f"cd {ROOT}\n{install}")
        machine.write("/usr/local/bin/editor", '#!/bin/sh\ncp /root/node.toml "$1"\n', 0o755)
        machine.write("/root/node.toml", _CONFIGURATION.format(port=server.port))
        machine.write("/etc/rechannel/redis.password", "pw", 0o600)
        machine.run(f"chown spark /etc/rechannel/redis.password\n{set_up}")
        wait_for_state(machine, AGENT)
        yield machine


def test_the_installed_agent_measures(node: HostMachine) -> None:
    wait_for_status(node, AGENT, "node: 0 executors")
    units = node.output("ls /usr/lib/systemd/system | grep rechannel")
    assert units == f"{AGENT}.service"


def test_stop_start_restart(node: HostMachine) -> None:
    services.start_again(node, AGENT)


def test_killed_agents_come_back(node: HostMachine) -> None:
    services.kill(node, AGENT, 3)


def test_a_mistake_in_the_configuration_is_an_error_in_the_journal_and_not_repeated(node: HostMachine) -> None:
    services.refuse(node, AGENT)


def test_the_watchdog_ends_a_frozen_agent(node: HostMachine) -> None:
    services.freeze(node, AGENT)


def test_exposure_is_no_worse_than_before(node: HostMachine) -> None:
    services.rate(node, AGENT)
