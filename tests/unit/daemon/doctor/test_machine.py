"""Checks of the machine of an agent, with and without a problem, and the facts from files below a directory."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from rechannel.daemon.cli import doctor
from rechannel.daemon.doctor import machine, machine_facts
from rechannel.daemon.doctor.finding import Severity
from rechannel.daemon.doctor.machine import FILES, WATCHES, MachineFacts, check_machine
from rechannel.daemon.doctor.machine_facts import Sources, clock_state
from unit.daemon.cli.command import run, write_config
from unit.daemon.doctor.checks import FAILED, OK, ROOT, WARNING, of, verdicts
from unit.monitors.fakes import NODE, FakeProcess, FakeTable, backend
from unit.monitors.node.test_throttling import V1_GROUPS, V1_MOUNTS, V2_GROUPS, V2_MOUNTS

UNIT = "rechannel-agent.service"
EXECUTORS = {"app-1/0": "spark", "app-1/1": "spark"}
AS_SPARK, CAPABILITIES = {"User": "spark"}, "CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"
BOTH = {"User": "agent", "AmbientCapabilities": CAPABILITIES, "CapabilityBoundingSet": CAPABILITIES}
DENIED = ("executor 0: rights missing to read its environment",)


def one(facts: MachineFacts, check: str) -> tuple[Severity, str]:
    (finding,) = of(check_machine(facts), check)
    return finding.verdict, f"{finding.subject}: {finding.sentence} {finding.cure}"


@pytest.mark.parametrize(
    ("facts", "verdict", "phrase"),
    [
        (MachineFacts("spark"), OK, "no executor runs here"),
        (MachineFacts("spark", EXECUTORS), OK, "executors run as spark"),
        (MachineFacts("root", EXECUTORS), WARNING, "`runuser -u spark -- rechannel doctor --machine`"),
        (MachineFacts("root", EXECUTORS, agent_unit=AS_SPARK), WARNING, "the rights of spark are not checked"),
        (MachineFacts("spark", EXECUTORS, agent_unit=AS_SPARK), OK, f"{UNIT} runs the agent as spark"),
        (MachineFacts("spark", EXECUTORS, agent_unit={"User": "hadoop"}), FAILED, "[Service] User=spark"),
        (MachineFacts("root", EXECUTORS, agent_unit=BOTH), OK, "executors of any user"),
        (
            MachineFacts("root", EXECUTORS, agent_unit=BOTH | {"AmbientCapabilities": "CAP_SYS_PTRACE"}),
            FAILED,
            "User=spark",
        ),
        (MachineFacts("root", EXECUTORS, agent_unit=BOTH | {"CapabilityBoundingSet": ""}), FAILED, "User=spark"),
        (MachineFacts("root", EXECUTORS, agent_unit={**BOTH, "User": "spark"}), OK, "executors of any user"),
        (MachineFacts("spark", EXECUTORS | {"app-2/0": "eve"}, agent_unit=AS_SPARK), FAILED, "both capabilities"),
    ],
)
def test_the_user_of_the_agent(facts: MachineFacts, verdict: Severity, phrase: str) -> None:
    result = one(facts, "agent-user")
    assert (result[0], phrase in result[1]) == (verdict, True), result


@pytest.mark.parametrize(
    ("facts", "verdict", "phrase"),
    [
        (MachineFacts("spark"), OK, "none runs here"),
        (MachineFacts("spark", EXECUTORS, other_hosts=["h2"]), OK, "2 can be read"),
        (MachineFacts("spark", other_hosts=["h2"]), FAILED, "set agent.node to h2"),
        (MachineFacts("eve", EXECUTORS, unreadable=DENIED), FAILED, "as Spark's user"),
        (MachineFacts("eve", EXECUTORS, unreadable=("odd",) * 3 + DENIED), FAILED, "as Spark's user"),
        (MachineFacts("eve", EXECUTORS, unreadable=DENIED, agent_unit=AS_SPARK), WARNING, "as Spark's user"),
        (MachineFacts("agent", EXECUTORS, unreadable=DENIED, agent_unit=BOTH), WARNING, "its environment"),
        (MachineFacts("spark", EXECUTORS, unreadable=["local directory unreadable"]), WARNING, "handbook"),
    ],
)
def test_what_can_be_read_of_executors(facts: MachineFacts, verdict: Severity, phrase: str) -> None:
    result = one(facts, "executors")
    assert (result[0], phrase in result[1]) == (verdict, True), result


@pytest.mark.parametrize(
    ("facts", "verdict", "phrase"),
    [
        (MachineFacts("spark"), OK, "all users"),
        (MachineFacts("spark", proc={"hidepid": "2"}), OK, "all users"),
        (
            MachineFacts("spark", proc={"hidepid": "2"}, sees_others=False),
            WARNING,
            "hidepid=2: only processes of spark",
        ),
        (MachineFacts("spark", EXECUTORS, proc={"hidepid": "2"}, sees_others=False), OK, "such as the executors"),
        (MachineFacts("root", proc={"subset": "pid"}), FAILED, "no agent can run"),
    ],
)
def test_the_mount_options_of_proc(facts: MachineFacts, verdict: Severity, phrase: str) -> None:
    result = one(facts, "proc")
    assert (result[0], phrase in result[1]) == (verdict, True), result


def test_local_directories() -> None:
    assert one(MachineFacts("spark"), "local-directories")[0] is OK
    assert "do not show theirs" in one(MachineFacts("spark", EXECUTORS), "local-directories")[1]
    free = {"/a": (0.06, 0.06), "/b": (0.04, 0.9), "/c": (0.9, 0.04)}
    findings = of(check_machine(MachineFacts("spark", EXECUTORS, missing=["/d"], free=free)), "local-directories")
    assert {item.subject: item.verdict for item in findings} == {"/d": FAILED, "/a": OK, "/b": WARNING, "/c": WARNING}


def test_limits() -> None:
    limits = {FILES: (66, 66), WATCHES: (128, 128)}
    assert one(MachineFacts("spark", limits=limits), "limits")[0] is OK
    assert "LimitNOFILE=66" in one(MachineFacts("spark", limits=limits | {FILES: (66, 65)}), "limits")[1]
    verdict, text = one(MachineFacts("spark", limits=limits | {WATCHES: (128, 127)}), "limits")
    assert (verdict, "fs.inotify.max_user_watches=128" in text) == (WARNING, True)


@pytest.mark.parametrize(("in_time", "verdict"), [(True, OK), (None, OK), (False, WARNING)])
def test_the_time_service(in_time: bool | None, verdict: Severity) -> None:
    assert verdicts(check_machine(MachineFacts("spark", in_time=in_time)), "time-service") == [verdict]


@pytest.mark.parametrize(("version", "verdict"), [(0, WARNING), (1, OK), (2, OK)])
def test_control_groups(version: int, verdict: Severity) -> None:
    assert verdicts(check_machine(MachineFacts("spark", control_groups=version)), "control-groups") == [verdict]


@pytest.mark.parametrize(("changed", "verdict"), [(None, OK), (False, OK), (True, WARNING)])
def test_a_unit(changed: bool | None, verdict: Severity) -> None:
    result = one(MachineFacts("spark", units={f"/usr/lib/systemd/system/{UNIT}": changed}), "units")
    assert (result[0], f"systemctl edit {UNIT}" in result[1]) == (verdict, bool(changed))
    assert verdicts(check_machine(MachineFacts("spark")), "units") == [OK]


# -- the facts --


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The files of a machine with /proc, the units that `make install` writes, and a local directory in use."""
    for name, text in {
        "self/mounts": "proc /proc proc rw,hidepid=invisible,gid=7 0 0\nx /a/proc ext4 rw,subset=pid 0 0\n",
        "self/cgroup": V2_GROUPS.replace("/kubepods.slice/pod1.slice/executor.scope", "/user.slice"),
        "self/mountinfo": V2_MOUNTS,
        "1/stat": "1 (init) S",
        "10/stat": "10 (java) S",
        "sys/fs/inotify/max_user_watches": "8192\n",
    }.items():
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    script, environment = ROOT / "systemd" / "install.sh", {"PATH": "/usr/bin:/bin", "DESTDIR": str(tmp_path)}
    subprocess.run(["sh", str(script), "install", "--no-venv"], env=environment, check=True, capture_output=True)
    for number in range(3):
        (tmp_path / f"local/blockmgr-1/0{number}").mkdir(parents=True)
    (tmp_path / "stderr").touch()
    return tmp_path


def sources(place: Path, *processes: FakeProcess, state: int = 0) -> Sources:
    return Sources(place, place / "elsewhere", FakeTable(*processes), lambda: state)  # type: ignore[arg-type]


def java(place: Path, denied: frozenset[str] = frozenset(), directory: str = "local") -> FakeProcess:
    environ = {"SPARK_EXECUTOR_DIRS": str(place / directory)}
    return FakeProcess(10, arguments=backend(), environ=environ, cwd=str(place), denied=denied)


def test_a_sample_of_an_executor(place: Path) -> None:
    facts = machine_facts.collect(NODE, sources(place, java(place)))
    owner = place.owner()
    assert (facts.user, facts.executors) == (owner, {"app-1/0": owner})
    assert (facts.unreadable, facts.missing, [*facts.free]) == ([], [], [str(place / "local")])
    assert all(0 <= share <= 1 for shares in facts.free.values() for share in shares)
    assert facts.limits[WATCHES] == (3, 8192)
    assert facts.limits[FILES] == (machine_facts._SPARE_FILES + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    assert verdicts(check_machine(facts), "executors") == [OK]


def test_an_executor_that_cannot_be_read(place: Path) -> None:
    facts = machine_facts.collect(NODE, sources(place, java(place, frozenset({"environment", "usage"}))))
    assert facts.executors == {}  # as for an agent: without its usage there is no sample
    facts = machine_facts.collect(NODE, sources(place, java(place, frozenset({"environment"}))))
    assert facts.unreadable == [*DENIED]
    (place / "stderr").unlink()
    assert "no stderr" in machine_facts.collect(NODE, sources(place, java(place))).unreadable[0]


def test_a_local_directory_that_is_missing(place: Path) -> None:
    facts = machine_facts.collect(NODE, sources(place, java(place, directory="gone")))
    assert (facts.missing, facts.free) == ([str(place / "gone")], {})


def test_executors_of_another_host_name(place: Path) -> None:
    facts = machine_facts.collect("h9", sources(place, java(place)))
    assert (facts.executors, facts.other_hosts) == ({}, [NODE])


def test_the_options_of_proc(place: Path) -> None:
    facts = machine_facts.collect(NODE, sources(place))
    assert (facts.proc, facts.sees_others) == ({"hidepid": "invisible", "gid": "7"}, True)
    shutil.rmtree(place / "proc/1")
    assert not machine_facts.collect(NODE, sources(place)).sees_others


def test_the_version_of_the_control_groups(place: Path) -> None:
    assert machine_facts.collect(NODE, sources(place)).control_groups == 2
    (place / "proc/self/mountinfo").write_text(V1_MOUNTS)
    assert machine_facts.collect(NODE, sources(place)).control_groups == 2
    (place / "proc/self/cgroup").write_text(V1_GROUPS)
    assert machine_facts.collect(NODE, sources(place)).control_groups == 1
    (place / "proc/self/mountinfo").write_text("")
    assert machine_facts.collect(NODE, sources(place)).control_groups == 0
    (place / "proc/self/cgroup").unlink()
    assert machine_facts.collect(NODE, sources(place)).control_groups == 0


@pytest.mark.parametrize(("state", "in_time"), [(0, True), (1, True), (5, False), (-1, None)])
def test_the_state_of_the_clock(place: Path, state: int, in_time: bool | None) -> None:
    assert machine_facts.collect(NODE, sources(place, state=state)).in_time is in_time
    assert clock_state() in range(-1, 6)


def test_units_drop_ins_and_changes_by_hand(place: Path) -> None:
    units, by_hand = place / "usr/lib/systemd/system", place / "etc/systemd/system"
    controller = str(units / "rechannel-controller.service")
    facts = machine_facts.collect(NODE, sources(place))
    assert facts.units == {str(units / UNIT): False, controller: False}
    assert facts.agent_unit == {"User": "spark", "CapabilityBoundingSet": ""}

    drop_in = by_hand / f"{UNIT}.d/override.conf"
    drop_in.parent.mkdir(parents=True)
    names = ("AmbientCapabilities", "CapabilityBoundingSet")
    lines = [f"{name}={value}\n" for name in names for value in CAPABILITIES.split()]
    drop_in.write_text(f"[Service]\nUser=hadoop\n{''.join(lines)}")
    facts = machine_facts.collect(NODE, sources(place))
    assert facts.units == {str(units / UNIT): False, str(drop_in): None, controller: False}
    assert facts.agent_unit == {"User": "hadoop", **dict.fromkeys(names, CAPABILITIES)}
    assert verdicts(check_machine(facts), "units") == [OK] * 3
    assert "drop-in" in of(check_machine(facts), "units")[1].sentence

    with (units / UNIT).open("a") as file:
        file.write("# mine\n")
    assert machine_facts.collect(NODE, sources(place)).units[str(units / UNIT)] is True
    (by_hand / UNIT).write_text("[Service]\nUser=eve\n")  # as of `systemctl edit --full`
    drop_in.unlink()
    facts = machine_facts.collect(NODE, sources(place))
    assert (facts.units[str(by_hand / UNIT)], facts.agent_unit) == (True, {"User": "eve"})

    shutil.rmtree(place / "opt")
    assert set(machine_facts.collect(NODE, sources(place)).units.values()) == {None}
    shutil.rmtree(place / "etc")
    shutil.rmtree(place / "usr")
    assert machine_facts.collect(NODE, sources(place)).units == {}


# -- the command --


def test_the_command_needs_no_redis_and_nothing_of_a_controller(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(place / "usr")  # the unit's user is not that of this test
    monkeypatch.setattr(doctor, "Sources", lambda: sources(place, java(place)))
    monkeypatch.setattr(doctor, "find_java_version", lambda _: pytest.fail("Java is looked for"))
    monkeypatch.setattr(doctor, "Store", lambda *_: pytest.fail("Redis is called"))
    monkeypatch.setattr("rechannel.wire.redis.acl.allows_anonymous", lambda _: pytest.fail("Redis is called"))
    # A file for every part of a cluster, whose key this user may not read.
    text = f'[agent]\nnode = "{NODE}"\n[signing]\nprivate_key_file = "none.key"\n[controller]\naudit_file = "/none/a"\n'
    path = write_config(tmp_path, text)
    document = json.loads(run("doctor", "--machine", "--config", path, "--json").stdout)
    checks = {item["check"]: item for item in document["checks"]}
    assert (document["ok"], checks["configuration"]["verdict"]) == (True, "ok")
    assert checks["executors"]["sentence"] == "1 can be read"
    assert {"python", "packages"} < checks.keys()
    assert {"java", "times", "redis"}.isdisjoint(checks)

    password = tmp_path / "password"
    password.write_text("secret")
    password.chmod(0o644)
    path = write_config(tmp_path, f'{text}[redis]\npassword_file = "{password}"\n')
    assert f"`chmod o= {password}`" in run("doctor", "--machine", "--config", path).stdout
    shutil.rmtree(place / "local")
    assert "1 failed" in run("doctor", "--machine", "--config", path, code=4).stdout


def test_one_kind_of_check_at_a_time(tmp_path: Path) -> None:
    assert "give one of them" in run("doctor", "--machine", "--conf", tmp_path / "f", code=2).stderr


def test_every_cure_of_a_limit_is_there() -> None:
    assert machine._CURES.keys() == machine_facts.collect("", Sources(table=FakeTable())).limits.keys()  # type: ignore[arg-type]
