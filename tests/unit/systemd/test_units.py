"""Installation of the systemd units: verification, hardening, upgrade and removal."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "systemd" / "install.sh"
UNITS = ("rechannel-controller.service", "rechannel-agent.service")
EXPOSURE = {"rechannel-controller.service": 1.3, "rechannel-agent.service": 2.0}  # of 10; systemd 252 says 1.1 and 1.7

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing: the units are NOT checked; make setup"
)


def install(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "DESTDIR": str(tmp_path / "root"), **variables}
    return subprocess.run(["sh", str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, check=False)


def installed(tmp_path: Path, **variables: str) -> Path:
    done = install(tmp_path, "install", "--no-venv", **variables)
    assert done.returncode == 0, done.stderr
    return tmp_path / "root"


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}


def unit(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser


@needs_systemd
def test_systemd_accepts_the_installed_units(tmp_path: Path) -> None:
    prefix = tmp_path / "opt"
    root = installed(tmp_path, PREFIX=str(prefix))
    program = prefix / "bin" / "rechannel"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    units = [str(root / "usr/lib/systemd/system" / name) for name in UNITS]
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=one", *units]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "rechannel" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


@needs_systemd
@pytest.mark.parametrize("name", UNITS)
def test_the_exposure_of_a_unit_is_limited(name: str) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", str(ROOT / "systemd" / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = re.search(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
    assert result is not None, done.stdout
    assert float(result[1]) <= EXPOSURE[name]


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_supervised(name: str) -> None:
    service = unit(ROOT / "systemd" / name)["Service"]
    assert service["Type"] == "notify"
    assert service["WatchdogSec"].endswith("min")
    assert service["Restart"] == "on-failure"  # what the watchdog kills is a failure
    assert service["RestartPreventExitStatus"] == "2 7"
    assert service.get("ExecReload") == ("kill -HUP $MAINPID" if "controller" in name else None)


def test_installed_files_name_the_chosen_directory_and_user(tmp_path: Path) -> None:
    root = installed(tmp_path, PREFIX="/srv/rechannel", AGENT_USER="hadoop")
    service = unit(root / "usr/lib/systemd/system/rechannel-agent.service")["Service"]
    assert service["ExecStart"] == "/srv/rechannel/bin/rechannel agent"
    assert service["User"] == "hadoop"
    assert (root / "usr/local/bin/rechannel").readlink() == Path("/srv/rechannel/bin/rechannel")
    for name in UNITS:  # `rechannel doctor --machine` compares them
        copy = root / "srv/rechannel/share/rechannel/systemd" / name
        assert copy.read_text() == (root / "usr/lib/systemd/system" / name).read_text()
    assert "opt" not in {path.name for path in root.iterdir()}


def test_an_upgrade_keeps_the_user_of_the_agent(tmp_path: Path) -> None:
    for variables, user in (({"AGENT_USER": "hadoop"}, "hadoop"), ({}, "hadoop"), ({"AGENT_USER": "spark"}, "spark")):
        root = installed(tmp_path, **variables)
        assert unit(root / "usr/lib/systemd/system/rechannel-agent.service")["Service"]["User"] == user


def test_others_may_enter_the_directories_whatever_roots_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        root = installed(tmp_path, PREFIX="/srv/apps/rechannel", BINDIR="/srv/bin")
    finally:
        os.umask(before)
    modes = {str(path.relative_to(root)): path.stat().st_mode for path in root.rglob("*") if path.is_dir()}
    closed = [path for path, mode in modes.items() if mode & 0o055 != 0o055]
    assert closed == [], "the services' users have to reach program and configuration"


def test_a_read_only_usr_is_named_before_anything_is_installed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "usr").touch()  # root may write everywhere else
    done = install(tmp_path, "install", "--no-venv")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert "LIBDIR=/etc BINDIR=/opt/bin" in done.stderr
    assert {path.name for path in root.iterdir()} == {"usr"}
    assert "`LIBDIR=/etc BINDIR=/opt/bin`" in (ROOT / "docs" / "services.md").read_text()
    installed(tmp_path, LIBDIR="/etc", BINDIR="/opt/bin")
    assert {f"etc/systemd/system/{name}" for name in UNITS} < files(root)
    assert install(tmp_path, "uninstall", LIBDIR="/etc", BINDIR="/opt/bin").returncode == 0
    assert {path.name for path in root.iterdir()} == {"usr"}


def test_install_and_uninstall_leave_nothing(tmp_path: Path) -> None:
    root = installed(tmp_path)
    assert {f"usr/lib/systemd/system/{name}" for name in UNITS} < files(root)
    assert {"etc/rechannel/rechannel.toml", "usr/lib/sysusers.d/rechannel.conf"} < files(root)
    assert not (tmp_path / "root/opt/rechannel.new").exists()
    assert install(tmp_path, "uninstall").returncode == 0
    assert list(root.rglob("*")) == []


def test_the_program_and_its_link_are_installed(tmp_path: Path) -> None:
    python = tmp_path / "python"  # makes an environment as `python3 -m venv` and `pip install` do
    python.write_text(
        '#!/bin/sh\n[ "$2" != venv ] || { mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; touch "$3/pyvenv.cfg"; }\n'
        '[ "$2" != pip ] || printf "#!%s\\n" "$0" >"$(dirname "$0")/rechannel"\n'
    )
    python.chmod(0o755)
    root = tmp_path / "root"
    done = install(tmp_path, "install", PYTHON=str(python))
    assert done.returncode == 0, done.stderr
    assert (root / "usr/local/bin/rechannel").readlink() == Path("/opt/rechannel/bin/rechannel")
    assert (root / "opt/rechannel/bin/rechannel").read_text() == "#!/opt/rechannel/bin/python\n"


@pytest.mark.parametrize(("role", "directories"), [("all", ["etc", "var"]), ("agent", ["etc"])])
def test_only_controllers_get_a_directory_for_their_audit_file(
    tmp_path: Path, role: str, directories: list[str]
) -> None:
    files = (installed(tmp_path, ROLE=role) / "usr/lib/tmpfiles.d").glob("rechannel*.conf")
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert sorted(line.split("/")[1] for line in lines if line.startswith("d ")) == directories


def test_files_named_in_the_documentation_are_installed(tmp_path: Path) -> None:
    share = installed(tmp_path) / "opt/rechannel/share"
    for path in ("alerts/rechannel.rules.yml", "grafana/rechannel.json", "rechannel.toml"):
        assert (share / "rechannel" / path).read_bytes() == (ROOT / "conf" / path).read_bytes()
    docs = ROOT / "docs"
    for page in docs.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            named = Path(os.path.normpath(page.parent / link))
            if named.is_relative_to(docs):
                there = share / "doc/rechannel" / named.relative_to(docs)
                assert there.exists(), f"{page.name} names {link}"


def test_data_files_are_in_the_package() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for package, where in (("rechannel.conf", "conf"), ("rechannel.daemon.web", "daemon/web")):
        there = {path for path in (ROOT / where).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        packed = {path for pattern in patterns[package] for path in (ROOT / where).glob(pattern)}
        assert {path.name for path in there - packed if path.suffix != ".py"} == set()


def test_the_operators_files_stay_unless_purged(tmp_path: Path) -> None:
    root = installed(tmp_path)
    (root / "etc/rechannel/rechannel.toml").write_text("[cluster]\nname = 'mine'\n")
    (root / "etc/rechannel/signing.key").write_text("secret")
    dropin = root / "etc/systemd/system/rechannel-agent.service.d/local.conf"
    dropin.parent.mkdir(parents=True)
    dropin.write_text("[Service]\nUser=hadoop\n")
    whole = root / "etc/systemd/system/rechannel-controller.service"  # as `systemctl edit --full` leaves it
    whole.write_text("[Service]\nUser=hadoop\n")
    done = install(tmp_path, "uninstall")
    for stored in (dropin.parent, whole, root / "etc/rechannel"):
        assert f"kept: {stored} (PURGE=1 removes it)" in done.stdout
    assert files(root) == {
        "etc/rechannel/rechannel.toml",
        "etc/rechannel/signing.key",
        "etc/systemd/system/rechannel-agent.service.d/local.conf",
        "etc/systemd/system/rechannel-controller.service",
    }
    assert install(tmp_path, "uninstall", PURGE="1").returncode == 0
    assert list(root.rglob("*")) == []


def test_an_upgrade_renews_only_an_unchanged_configuration(tmp_path: Path) -> None:
    root = installed(tmp_path)
    (root / "opt/rechannel/left-over").write_text("of the old version")
    for share in ("etc/rechannel", "opt/rechannel/share/rechannel"):  # as an older version had it
        (root / share / "rechannel.toml").write_text("# older\n")
    installed(tmp_path)
    assert not (root / "opt/rechannel/left-over").exists()
    new = (ROOT / "conf/rechannel.toml").read_text()
    assert (root / "etc/rechannel/rechannel.toml").read_text() == new
    (root / "etc/rechannel/rechannel.toml").write_text("# mine\n")
    installed(tmp_path)
    assert (root / "etc/rechannel/rechannel.toml").read_text() == "# mine\n"


@pytest.mark.parametrize(("user", "reported"), [("root", False), ("nobody-of-this-name", True)])
def test_a_missing_user_of_the_agent_is_reported(user: str, reported: bool) -> None:
    # Without DESTDIR the script installs for good, so only what it says of the user is run here.
    lines = SCRIPT.read_text()
    check = lines[lines.index("        getent passwd") : lines.index("    fi\n    if is_live; then\n        systemctl")]
    script = f'say() {{ echo "$1"; }}; agent_user={user}; set -e; {check}'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert (f"there is no user {user}" in done.stdout) is reported


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PREFIX": "/usr/local"}, "Rechannel's own"),
        ({"PREFIX": "opt"}, "no absolute path"),
        ({"PREFIX": "/opt/../etc"}, "may be in a path"),
        ({"PREFIX": "/opt/re channel"}, "may be in a path"),
        ({"AGENT_USER": "a|b"}, "no user name"),
    ],
)
def test_dangerous_paths_and_users_are_refused(tmp_path: Path, variables: dict[str, str], message: str) -> None:
    for action in ("install", "uninstall"):
        done = install(tmp_path, action, NO_VENV="1", **variables)
        assert done.returncode == 1
        assert message in done.stderr
    assert not (tmp_path / "root").exists()


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    other = tmp_path / "root/opt/rechannel/other"
    other.parent.mkdir(parents=True)
    other.write_text("not ours")
    assert "not from this installer" in install(tmp_path, "install", "--no-venv").stderr
    install(tmp_path, "uninstall", "--purge")
    assert other.read_text() == "not ours"


def test_a_node_gets_the_agents_unit_alone(tmp_path: Path) -> None:
    root = installed(tmp_path, ROLE="agent")
    assert {path.name for path in (root / "usr/lib/systemd/system").iterdir()} == {"rechannel-agent.service"}
    assert not (root / "usr/lib/sysusers.d").exists()
    assert install(tmp_path, "uninstall").returncode == 0
    assert list(root.rglob("*")) == []


def test_a_controller_is_not_replaced_by_the_light_distribution(tmp_path: Path) -> None:
    root = installed(tmp_path)
    before = files(root)
    done = install(tmp_path, "install", "--no-venv", ROLE="agent")
    assert (done.returncode, "make uninstall first" in done.stderr) == (1, True)
    assert files(root) == before
    assert "is no role" in install(tmp_path, "install", "--no-venv", ROLE="driver").stderr
