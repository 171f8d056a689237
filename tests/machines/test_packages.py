"""The Debian packages on a booted machine: installed, configured, upgraded, removed, purged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.machines.machine import Machine, call
from tests.machines.steps import state_of, wait_for_status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MOST_KB = 30_000  # installed, of a node
CONTROLLER, AGENT = "rechannel-controller.service", "rechannel-agent.service"
TOML = Path("etc/rechannel/rechannel.toml")
CONFIGURATION = """
[redis]
url = "redis://127.0.0.1:6379/0"
[signing]
private_key_file = "signing.key"
public_key_file = "signing.pub"
[controller]
audit_file = "/var/log/rechannel/audit.jsonl"
"""


def upgrade_of(package: Path, place: Path) -> Path:
    """Return the same package with a later version."""
    call("dpkg-deb", "--raw-extract", str(package), str(place))
    control = place / "DEBIAN/control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 9:"))
    later = place.with_suffix(".deb")
    call("dpkg-deb", "-Znone", "--build", str(place), str(later))
    return later


def dpkg(machine: Machine, action: str, subject: Path | str, codes: tuple[int, ...] = (0,)) -> str:
    """Have dpkg install a file of this machine inside, or act on an installed package."""
    if isinstance(subject, Path):
        shutil.copy(subject, machine.root / "root")
        subject = f"/root/{subject.name}"
    return machine.call("dpkg", action, subject, codes=codes)


def enabled(machine: Machine, unit: str) -> str:
    return machine.call("systemctl", "is-enabled", unit, codes=(0, 1)).strip()


def test_lintian_finds_nothing(packages: dict[str, Path]) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("needs lintian: the packages are NOT checked")
    call("lintian", "--allow-root", "--fail-on", "error,warning", *map(str, packages.values()))


def test_a_node_gets_little_and_nobody_gets_pyspark(packages: dict[str, Path]) -> None:
    agent = packages["rechannel-agent"]
    size = int(call("dpkg-deb", "--field", str(agent), "Installed-Size"))
    assert size <= MOST_KB
    assert agent.stat().st_size < size * 1000
    for package in packages.values():
        assert "/pyspark/" not in call("dpkg-deb", "--contents", str(package))


def test_a_controller_from_installation_to_purge(machine: Machine, packages: dict[str, Path], tmp_path: Path) -> None:
    output = dpkg(machine, "--install", packages["rechannel"])
    assert "there is no user spark" in output
    assert machine.call("id", "--user", "--name", "rechannel").strip() == "rechannel"
    for unit in (CONTROLLER, AGENT):
        assert (enabled(machine, unit), state_of(machine, unit, "ActiveState")) == ("disabled", "inactive")

    (machine.root / TOML).write_text(CONFIGURATION)
    machine.call("rechannel", "config", "keys", "/etc/rechannel")
    machine.call("chown", "rechannel", "/etc/rechannel/signing.key")
    machine.call("useradd", "--system", "spark")
    machine.call("systemctl", "start", "redis-server")
    machine.call("rechannel", "config", "check", "--config", f"/{TOML}")
    machine.call("systemctl", "enable", "--now", CONTROLLER, AGENT)
    wait_for_status(machine, CONTROLLER, "leading in epoch 1")
    wait_for_status(machine, AGENT, "waits for an executor")
    before = [state_of(machine, unit, "MainPID") for unit in (CONTROLLER, AGENT)]

    output = dpkg(machine, "--install", upgrade_of(packages["rechannel"], tmp_path / "later"))
    assert "no user" not in output
    assert (machine.root / TOML).read_text() == CONFIGURATION
    wait_for_status(machine, CONTROLLER, "leading in epoch 2")
    wait_for_status(machine, AGENT, "waits for an executor")
    after = [state_of(machine, unit, "MainPID") for unit in (CONTROLLER, AGENT)]
    assert not set(before) & set(after)

    dpkg(machine, "--remove", "rechannel")
    for unit in (CONTROLLER, AGENT):
        assert state_of(machine, unit, "ActiveState") == "inactive"
    assert not (machine.root / "opt/rechannel").exists()
    assert (machine.root / TOML).read_text() == CONFIGURATION
    assert (machine.root / "etc/rechannel/signing.key").exists()

    dpkg(machine, "--purge", "rechannel")
    assert "rechannel" not in machine.call("getent", "passwd")
    assert machine.call("find", "/etc", "/usr", "/var/lib", "/var/log", "-name", "*rechannel*") == ""


def test_a_purged_user_that_owns_files_stays(machine: Machine, packages: dict[str, Path]) -> None:
    dpkg(machine, "--install", packages["rechannel"])
    machine.call("install", "--owner=rechannel", "/dev/null", "/srv/file")
    dpkg(machine, "--purge", "rechannel")
    assert machine.call("stat", "--format=%U", "/srv/file").strip() == "rechannel"


def test_the_agents_package_gives_way_to_the_full_one(machine: Machine, packages: dict[str, Path]) -> None:
    dropin = machine.root / "etc/systemd/system/rechannel-agent.service.d/user.conf"
    dropin.parent.mkdir(parents=True)
    dropin.write_text("[Service]\nUser=redis\n")
    assert "no user" not in dpkg(machine, "--install", packages["rechannel-agent"])  # Redis' is there
    assert "rechannel" not in machine.call("getent", "passwd")
    assert enabled(machine, AGENT) == "disabled"
    assert not (machine.root / "lib/systemd/system" / CONTROLLER).exists()

    (machine.root / TOML).write_text(CONFIGURATION.partition("[signing]")[0])
    machine.call("rechannel", "config", "check", "--config", f"/{TOML}")
    machine.call("systemctl", "start", "redis-server", AGENT)
    wait_for_status(machine, AGENT, "waits for an executor")
    assert machine.call("stat", "--format=%U", f"/proc/{state_of(machine, AGENT, 'MainPID')}").strip() == "redis"

    dpkg(machine, "--install", packages["rechannel"])
    assert state_of(machine, CONTROLLER, "LoadState") == "loaded"
    dpkg(machine, "--purge", "rechannel-agent")
    assert "[redis]" in (machine.root / TOML).read_text()  # the full package has it now
    machine.call("rechannel", "config", "check", "--config", f"/{TOML}")


def test_a_package_does_not_mix_with_make_install(machine: Machine, packages: dict[str, Path]) -> None:
    marker = machine.root / "opt/rechannel/.installed-files"
    marker.parent.mkdir(parents=True)
    marker.write_text("/usr/local/bin/rechannel\n")
    output = dpkg(machine, "--install", packages["rechannel-agent"], codes=(1,))
    assert "make uninstall" in output
    assert not (machine.root / "usr/bin/rechannel").is_symlink()
