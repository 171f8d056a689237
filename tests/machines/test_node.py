"""A node that systemd booted: the agent installed by the page, its service broken; what CI can afford of the suite."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from testbed.processes import ROOT, ProcessGroup
from testbed.redis_server import RedisServer
from tests.machines import services
from tests.machines.installing import AGENT
from tests.machines.machine import HostMachine, MachineError, why_not
from tests.machines.site import CHECKOUT, page_blocks
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


def test_an_agent_from_its_installation_to_its_watchdog(tmp_path: Path) -> None:
    """One test, as each process of xdist would boot a machine for its share of several."""
    (tmp_path / "node").mkdir()
    node = HostMachine("node", tmp_path / "node", {ROOT: CHECKOUT})
    with ProcessGroup(tmp_path / "logs") as group, contextlib.closing(node):
        _boot(node)
        server = RedisServer(group, tcp=True, password="pw").start()
        _install(node, server.port)
        wait_for_status(node, AGENT, "node: 0 executors")
        assert node.output("ls /usr/lib/systemd/system | grep rechannel") == f"{AGENT}.service"
        services.start_again(node, AGENT)
        services.kill(node, AGENT, 10)
        services.refuse(node, AGENT)
        services.freeze(node, AGENT)
        services.rate(node, AGENT)


def _boot(node: HostMachine) -> None:
    """Boot a machine; skipped where this host cannot, or where it would not look like a new node."""
    try:
        node.mount()
        if list((node.root / "usr/lib/systemd/system").glob("rechannel-*")):
            pytest.skip("Rechannel is installed on this host")
        node.boot()
        node.run("python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'")
    except MachineError as error:
        pytest.skip(f"no machine with Python 3.11 can be booted here: {error}")


def _install(node: HostMachine, port: int) -> None:
    """Run the page's blocks for a node; Spark's user is there."""
    install, _, _, set_up = page_blocks("Install")
    node.run("id spark || useradd --system spark")
    node.run(f"cd {CHECKOUT}\n{install}")
    node.write("/usr/local/bin/editor", '#!/bin/sh\ncp /root/node.toml "$1"\n', 0o755)
    node.write("/root/node.toml", _CONFIGURATION.format(port=port))
    node.write("/etc/rechannel/redis.password", "pw", 0o600)
    node.run(set_up)
    wait_for_state(node, AGENT)
