"""The Ansible role on a booted machine, over ssh: changes only what differs, refuses a wrong configuration."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.installation import install
from testbed.processes import ROOT
from tests.machines.machine import Machine, call
from tests.machines.steps import state_of, wait_for_status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PLAYBOOK = ROOT / "deploy/ansible/playbook.yml"
CONTROLLER, AGENT = "rechannel-controller", "rechannel-agent"
TOML = "etc/rechannel/rechannel.toml"
CONTROLLERS, AGENTS = "rechannel_controllers", "rechannel_agents"
OPTIONS = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of ansible-playbook: that on PATH, else a new environment."""
    present = shutil.which("ansible-playbook")
    return Path(present).parent if present else install(tmp_path_factory.mktemp("ansible") / "venv", "ansible-core")


class Playbook:
    """The example playbook, for one machine."""

    def __init__(self, program: Path, machine: Machine, place: Path) -> None:
        self.program, self.place = program, place
        key = place / "ssh"
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        authorized = machine.root / "root/.ssh/authorized_keys"
        authorized.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(key.with_suffix(".pub"), authorized)
        machine.call("systemctl", "start", "ssh")
        self.connection = {
            "ansible_host": machine.address,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(key),
            "ansible_ssh_common_args": OPTIONS,
            "ansible_python_interpreter": "/usr/bin/python3",
        }

    def run(self, groups: tuple[str, ...], variables: dict[str, Any], code: int = 0) -> int:
        """Run it with the machine in some groups; returns the number of changes."""
        hosts = {"machine": self.connection | variables}
        inventory = self.place / "inventory.yml"
        inventory.write_text(yaml.safe_dump({group: {"hosts": hosts} for group in groups}))
        settings = ["ANSIBLE_NOCOLOR=1", "ANSIBLE_LOCALHOST_WARNING=0", "LC_ALL=C.UTF-8", f"HOME={self.place}"]
        command = ["env", *settings, str(self.program), "-i", str(inventory), str(PLAYBOOK)]
        output = call(*command, codes=(code,))
        (changed,) = re.findall(r"changed=(\d+)", output)
        return int(changed)


@pytest.fixture
def playbook(programs: Path, machine: Machine, tmp_path: Path) -> Playbook:
    return Playbook(programs / "ansible-playbook", machine, tmp_path)


def test_a_machine_with_both_services(
    playbook: Playbook, machine: Machine, packages: dict[str, Path], tmp_path: Path
) -> None:
    machine.call("useradd", "--system", "spark")
    machine.call("systemctl", "start", "redis-server")
    machine.call("redis-cli", "config", "set", "requirepass", "geheim")
    keys = tmp_path / "keys"
    call("env", f"PYTHONPATH={ROOT}/src", sys.executable, "-m", "rechannel", "config", "keys", str(keys))
    settings: dict[str, Any] = {
        "redis": {"url": "redis://127.0.0.1:6379/0"},
        "controller": {"audit_file": "/var/log/rechannel/audit.jsonl"},
    }
    variables = {
        "rechannel_deb": str(packages["rechannel"]),
        "rechannel_signing_key": str(keys / "signing.key"),
        "rechannel_signing_pub": str(keys / "signing.pub"),
        "rechannel_redis_password": "geheim",
        "rechannel_settings": settings,
    }
    groups = (CONTROLLERS, AGENTS)
    assert playbook.run(groups, variables) > 0
    wait_for_status(machine, CONTROLLER, "leading in epoch 1")
    wait_for_status(machine, AGENT, "waits for an executor")
    owners = machine.call(
        "stat", "--format=%a %U %G", *(f"/etc/rechannel/{name}" for name in ("signing.key", "redis.password"))
    )
    assert owners.splitlines() == ["600 rechannel root", "440 rechannel spark"]
    assert machine.call("systemctl", "is-enabled", CONTROLLER).strip() == "enabled"
    assert playbook.run(groups, variables) == 0

    settings["policies"] = {"adaptive": {"mode": "light"}}
    settings["reschedule"] = {"timeout": 600, "excluded": ["Mon-Fri 09:00-18:00"]}
    before = state_of(machine, CONTROLLER, "MainPID")
    assert playbook.run(groups, variables) == 2  # the file, and the restart
    wait_for_status(machine, CONTROLLER, "leading in epoch 2")
    after = state_of(machine, CONTROLLER, "MainPID")
    assert after != before
    assert machine.call("rechannel", "config", "check").startswith("the configuration can be used")

    configured = (machine.root / TOML).read_text()
    settings["reschedule"]["timeout"] = -1
    playbook.run(groups, variables, code=2)
    assert (machine.root / TOML).read_text() == configured
    assert state_of(machine, CONTROLLER, "MainPID") == after


def test_a_node(playbook: Playbook, machine: Machine, packages: dict[str, Path]) -> None:
    machine.call("systemctl", "start", "redis-server")
    variables = {
        "rechannel_agent_deb": str(packages["rechannel-agent"]),
        "rechannel_agent_user": "redis",
        "rechannel_settings": {"redis": {"url": "redis://127.0.0.1:6379/0"}},
    }
    assert playbook.run((AGENTS,), variables) > 0
    wait_for_status(machine, AGENT, "waits for an executor")
    assert machine.call("stat", "--format=%U", f"/proc/{state_of(machine, AGENT, 'MainPID')}").strip() == "redis"
    assert playbook.run((AGENTS,), variables) == 0
