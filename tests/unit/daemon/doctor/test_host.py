"""Checks of the host, the settings and Redis, with and without a problem."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rechannel.conf.loader import LoadResult, load, read_settings
from rechannel.conf.settings import AgentSettings, RedisSettings, Settings
from rechannel.daemon.cli import config, doctor
from rechannel.daemon.doctor import cluster, host, key_files, security
from rechannel.daemon.doctor.cluster import ApplicationFacts
from rechannel.daemon.doctor.finding import Severity
from rechannel.daemon.doctor.host import HostFacts, RedisFacts, RedisPermissions
from rechannel.wire.keys import Role
from rechannel.wire.redis import capacity
from rechannel.wire.signing import make_keys
from unit.daemon.cli.command import write_config
from unit.daemon.doctor.checks import FAILED, INFO, OK, ROOT, WARNING, of, verdicts
from unit.daemon.fakes import query, report

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = PROJECT["dependencies"]
FITTING = {name: low for name, low, _ in map(host.parse_requirement, REQUIREMENTS)}


@pytest.mark.parametrize(("version", "verdict"), [((3, 11, 0), OK), ((3, 14, 1), OK), ((3, 10, 9), FAILED)])
def test_python(version: tuple[int, int, int], verdict: Severity) -> None:
    assert verdicts(host.check_host(HostFacts(version, REQUIREMENTS, FITTING, "17")), "python") == [verdict]


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, OK),
        ({"redis": ""}, FAILED),
        ({"redis": "5.1.9"}, FAILED),
        ({"redis": "10.0rc1"}, OK),
        ({"apscheduler": "4.0.0a5"}, FAILED),
        ({"pyspark": ""}, WARNING),
        ({"pyspark": "3.4.1"}, WARNING),
    ],
)
def test_packages(change: dict[str, str], verdict: Severity) -> None:
    packages = {name: version for name, version in (FITTING | change).items() if version}
    findings = host.check_host(HostFacts((3, 12, 0), REQUIREMENTS, packages, "17"))
    assert verdicts(findings, "packages") == [verdict]
    assert [item.subject for item in of(findings, "packages")] == [*change] if verdict is not OK else [""]


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_requirement_of_the_project_is_parsed(requirement: str) -> None:
    name, low, high = host.parse_requirement(requirement)
    assert requirement == f"{name}>={low}{f',<{high}' if high else ''}"


def test_requirements_are_those_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = ["apscheduler<4,>=3.11", "redis>=5.2", 'pytest>=8.3; extra == "test"']
    monkeypatch.setattr("importlib.metadata.requires", lambda _: installed)
    facts = doctor.collect_host_facts()
    assert facts.requirements == installed[:2]
    assert facts.packages.keys() == {"apscheduler", "redis"}
    assert host.parse_requirement(installed[0]) == ("apscheduler", "3.11", "4")
    assert verdicts(host.check_host(dataclasses.replace(facts, requirements=[])), "packages") == [WARNING]
    assert PROJECT["requires-python"] == f">={'.'.join(map(str, host.OLDEST_PYTHON))}"


@pytest.mark.parametrize(
    ("java", "spark", "verdict"),
    [
        ("17.0.2", "4.3.0", OK),
        ("25", "4.3.0", OK),
        ("25.0.1", "4.0.1", WARNING),
        ("11.0.9", "4.0.0", FAILED),
        ("1.8.0_392", "4.0.0", FAILED),
        ("1.8.0_392", "3.5.1", OK),
        ("11", "", FAILED),
        ("17", "", OK),
        ("", "4.3.0", WARNING),
    ],
)
def test_java(java: str, spark: str, verdict: Severity) -> None:
    packages = FITTING | {"pyspark": spark} if spark else {k: v for k, v in FITTING.items() if k != "pyspark"}
    assert verdicts(host.check_host(HostFacts((3, 12, 0), REQUIREMENTS, packages, java)), "java") == [verdict]


def test_java_is_searched_like_spark_does(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.3\" 2024-04-16' >&2\n")
    java.chmod(0o755)
    assert doctor.find_java_version({"JAVA_HOME": str(tmp_path), "PATH": ""}) == "21.0.3"
    assert doctor.find_java_version({"PATH": str(java.parent)}) == "21.0.3"
    assert doctor.find_java_version({"JAVA_HOME": str(tmp_path / "none")}) == ""


KEYS = {"signing.private_key_file": "k", "signing.public_key_file": "p"}


def loaded(*fields: str, user: str = "") -> LoadResult:
    values = {name.replace(".", "__").upper(): value for name, value in KEYS.items() if name in fields}
    values |= {"REDIS__USERNAME": user} if user else {}
    return read_settings(None, {f"RECHANNEL_{name}": value for name, value in values.items()})


def test_configuration_and_keys(tmp_path: Path) -> None:
    fine = host.check_configuration(loaded(*KEYS), [], [])
    assert (verdicts(fine, "configuration"), verdicts(fine, "signing-keys")) == ([OK], [OK])
    path = write_config(tmp_path, "[gate]\nmin_gain = 7\n")
    mistakes = ["gate.min_gain: 7 is too much; use less", "signing.private_key_file: /k cannot be read"]
    notes = ["redis.password_file: /p can be read by everybody; `chmod o= /p`"]
    bad = host.check_configuration(read_settings(path, {}), mistakes, notes)
    assert (verdicts(bad, "configuration"), verdicts(bad, "signing-keys")) == ([FAILED, WARNING], [FAILED])
    assert of(bad, "configuration")[0].sentence == f"{path}:2: gate.min_gain: 7 is too much"
    assert of(bad, "configuration")[1].cure == "`chmod o= /p`"


def test_the_used_configuration_file_is_named(tmp_path: Path) -> None:
    path = write_config(tmp_path, "")
    for variables, verdict, phrase in (
        ({}, WARNING, "no configuration file: RECHANNEL_CONFIG is not set"),
        ({"RECHANNEL_CONFIG": str(path)}, OK, f"configuration: {path} (RECHANNEL_CONFIG); "),
    ):
        (finding,) = of(host.check_configuration(read_settings(None, variables), [], []), "configuration")
        assert (finding.verdict, phrase in finding.sentence) == (verdict, True)


@pytest.mark.parametrize(
    ("user", "fields", "verdict"),
    [
        ("", (), FAILED),
        ("", ("signing.public_key_file",), OK),
        ("", tuple(KEYS), OK),
        ("rechannel-default-controller", ("signing.public_key_file",), FAILED),
        ("rechannel-default-controller-a", tuple(KEYS), OK),
        ("rechannel-default-link", (), FAILED),
        ("rechannel-default-link-etl", ("signing.public_key_file",), OK),
        ("rechannel-default-agent-127.0.0.2", (), OK),
        ("rechannel-default-viewer", (), OK),
        ("rechannel-default-operator-ann", (), OK),
        ("rechannel-other-viewer", (), FAILED),
    ],
)
def test_missing_keys_by_role(user: str, fields: tuple[str, ...], verdict: Severity) -> None:
    result = loaded(*fields, user=user)
    _, notes = key_files.check_keys(loaded(user=user).settings)  # notes on missing keys, which are not repeated
    findings = of(host.check_configuration(result, [], notes), "signing-keys")
    assert [item.verdict for item in findings] == [verdict], findings
    assert all("nobody" not in item.sentence for item in findings if item.verdict is OK)


def test_a_private_key_alone_is_a_warning(tmp_path: Path) -> None:
    make_keys(tmp_path)
    result = read_settings(write_config(tmp_path, '[signing]\nprivate_key_file = "signing.key"\n'), {})
    mistakes, notes = key_files.check_keys(result.settings)
    assert mistakes == []
    (finding,) = of(host.check_configuration(result, mistakes, notes), "signing-keys")
    assert (finding.verdict, finding.cure) == (WARNING, "name signing.pub there")


def test_an_open_redis_is_reported_with_its_cure() -> None:
    findings = host.check_configuration(loaded(*KEYS), [], [security.OPEN_REDIS])
    (finding,) = of(findings, "redis-rights")
    assert (finding.verdict, "ACL SETUSER default off" in finding.cure) == (WARNING, True)
    assert verdicts(findings, "configuration") == [OK]


def test_every_note_has_a_cure_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECHANNEL_ZZZ", "1")
    notes = [
        security.OPEN_REDIS,
        security.NO_PUBLIC_KEYS,
        *security.listen_notes({"controller.listen": "0.0.0.0:1"}),
        *config._unknown_variables({"RECHANNEL_ZZZ": "1", "RECHANNEL_CONFG": "1"}),
    ]
    cures = [item.cure for item in host.check_configuration(loaded(*KEYS), [], notes) if item.verdict is WARNING]
    assert len(cures) == len(notes)
    assert "change that setting, or its file" not in cures


@pytest.mark.parametrize(("variables", "verdict"), [({}, OK), ({"RECHANNEL_RESCHEDULE__TIMEOUT": "10"}, WARNING)])
def test_times(variables: dict[str, str], verdict: Severity) -> None:
    assert verdicts(host.check_times(load(None, variables)), "times") == [verdict]


# -- Redis --


@pytest.mark.parametrize(
    ("check", "change", "verdict"),
    [
        ("redis", {}, OK),
        ("redis-version", {}, OK),
        ("redis-version", {"redis_version": "6.2.1"}, FAILED),
        ("redis-version", {"redis_version": "7.2.4", "valkey_version": "9.0.0"}, OK),
        ("redis-version", {"redis_version": ""}, FAILED),
        ("redis-role", {}, OK),
        ("redis-role", {"role": "slave"}, FAILED),
        ("redis-eviction", {}, OK),
        ("redis-eviction", {"maxmemory_policy": "allkeys-lru"}, WARNING),
        ("redis-eviction", {"maxmemory_policy": "allkeys-lru", "maxmemory": 2**30}, FAILED),
        ("redis-eviction", {"maxmemory_policy": "volatile-ttl", "evicted_keys": 3}, FAILED),
        ("redis-memory", {"maxmemory": 2**21}, OK),
        ("redis-memory", {"maxmemory": 2**20 + 1}, WARNING),
        ("redis-persistence", {}, OK),
        ("redis-persistence", {"aof_enabled": 0, "rdb_saves": 1}, OK),
        ("redis-persistence", {"aof_enabled": 0, "rdb_saves": 0}, WARNING),
        ("redis-persistence", {"rdb_last_bgsave_status": "err"}, FAILED),
        ("redis-persistence", {"aof_last_write_status": "err"}, FAILED),
    ],
)
def test_redis(check: str, change: dict[str, Any], verdict: Severity) -> None:
    assert verdicts(host.check_redis(RedisFacts(INFO | change, 0.001, 0.0), 2.0), check) == [verdict]
    assert verdicts(host.check_redis(RedisFacts(INFO | change, 0.6, 0.0), 2.0), "redis") == [WARNING], "slow"


@pytest.mark.parametrize(
    ("maxmemory", "verdict", "phrase"),
    [(0, OK, "not set"), (2**28, WARNING, "maxmemory is 256 MiB, but the keys of 100 nodes"), (2**30, OK, "1,024 MiB")],
)
def test_redis_has_memory_for_the_whole_cluster(maxmemory: int, verdict: Severity, phrase: str) -> None:
    applications = [ApplicationFacts(f"app-{number}", report([query(["0"] * 200)])) for number in range(5)]
    applications.append(ApplicationFacts("silent", None))
    finding = cluster.check_memory(INFO | {"maxmemory": maxmemory}, applications, 100)
    assert verdicts([finding], "redis-memory") == [verdict]
    assert phrase in finding.sentence and "5 applications" in finding.sentence
    figure = capacity.required_memory(100, [capacity.Application(executors=4, queries=1, partitions=200)] * 5)
    assert verdict is OK or f"maxmemory {figure / 2**20:.0f}mb" in finding.cure


@pytest.mark.parametrize(
    ("ahead", "seconds", "verdict"),
    [(0.2, 0.0, OK), (-2.0, 0.0, WARNING), (2.0, 1.5, OK), (30.0, 0.1, FAILED), (-30.0, 0.1, FAILED)],
)
def test_the_clock_of_this_machine(ahead: float, seconds: float, verdict: Severity) -> None:
    finding = host.check_clock(RedisFacts(INFO, seconds, ahead))
    assert verdicts([finding], "clock") == [verdict]
    if verdict is not OK:
        assert ("behind" in finding.sentence) == (ahead > 0)


@pytest.mark.parametrize(
    ("ahead", "verdict"), [({}, OK), ({"a": 0.5, "b": -1.5}, OK), ({"a": 1.5}, WARNING), ({"a": -8.0}, FAILED)]
)
def test_clocks_of_the_parts(ahead: dict[str, float], verdict: Severity) -> None:
    assert verdicts(host.check_clocks(ahead), "clock-parts") == [verdict]


@pytest.mark.parametrize("role", Role)
def test_rights_of_a_role(role: Role) -> None:
    needed = host.permissions_of(role)
    assert verdicts([host.check_permissions(RedisPermissions("u", None, needed, False))], "redis-rights") == [OK]
    assert role in host.check_permissions(RedisPermissions("u", None, needed, False)).sentence
    more = needed | {("nothing-of-ours", "write")}
    assert verdicts([host.check_permissions(RedisPermissions("u", role, more, False))], "redis-rights") == [WARNING]
    for right in needed:
        lacking = host.check_permissions(RedisPermissions("u", role, needed - {right}, False))
        assert (lacking.verdict, right[0] in lacking.sentence) == (FAILED, True)


def test_users_without_a_role() -> None:
    assert host.check_permissions(RedisPermissions("default", None, frozenset(), True)).verdict is WARNING
    assert host.check_permissions(RedisPermissions("u", None, frozenset(), False)).verdict is FAILED


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ("rechannel-default-agent-10.0.0.5", "10.0.0.5"),
        ("rechannel-default-agent", "host-name"),
        ("rechannel-default-controller", "host-name"),
        ("rechannel-other-agent-10.0.0.5", "host-name"),
        ("", "host-name"),
    ],
)
def test_the_rights_of_an_agent_are_those_for_the_node_of_its_user(user: str, name: str) -> None:
    settings = Settings(agent=AgentSettings(node="host-name"), redis=RedisSettings(username=user))
    assert host.node_of_user(settings) == name
