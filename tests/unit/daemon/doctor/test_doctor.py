"""Every check of the doctor, both ways; and that its page tells of all of them."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from rechannel import __version__
from rechannel.conf.loader import LoadResult, read
from rechannel.conf.settings import Settings, load
from rechannel.daemon.cli import config, doctor, status
from rechannel.daemon.cli.main import main
from rechannel.daemon.doctor import cluster, node, security
from rechannel.daemon.doctor.cluster import ApplicationFacts, NodeFacts
from rechannel.daemon.doctor.finding import CATALOG, Finding, Severity, exit_code_of
from rechannel.daemon.doctor.node import HostFacts, RedisFacts, RedisPermissions
from rechannel.daemon.view.last_leader import leading
from rechannel.migration.link.report import environment
from rechannel.wire import keys
from rechannel.wire.envelope_factory import EnvelopeFactory
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.keys import Role
from rechannel.wire.messages import ControllerState, Envelope, LinkReport
from rechannel.wire.redis import capacity
from rechannel.wire.signing import make_keys
from unit.daemon.fakes import APP, NOW, FakeClock, FakeStore, batch, query, report, window

ROOT = Path(__file__).parents[4]
OK, WARNING, FAILED = Severity.OK, Severity.WARNING, Severity.FAILED
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = PROJECT["dependencies"]
FITTING = {name: low for name, low, _ in map(node.parse_requirement, REQUIREMENTS)}
INFO: dict[str, Any] = {
    "redis_version": "7.2.4",
    "role": "master",
    "maxmemory_policy": "noeviction",
    "maxmemory": 0,
    "used_memory": 2**20,
    "aof_enabled": 1,
    "rdb_last_bgsave_status": "ok",
}
STOCK = environment(lambda _, default: default)


def of(found: Sequence[Finding], check: str) -> list[Finding]:
    chosen = [item for item in found if item.check == check]
    assert chosen, check
    for item in found:
        assert item.check in CATALOG
        assert bool(item.cure) == (item.verdict is not OK), item
    return chosen


def verdicts(found: Sequence[Finding], check: str) -> list[Severity]:
    return [item.verdict for item in of(found, check)]


# -- this machine --


@pytest.mark.parametrize(("version", "verdict"), [((3, 11, 0), OK), ((3, 14, 1), OK), ((3, 10, 9), FAILED)])
def test_python(version: tuple[int, int, int], verdict: Severity) -> None:
    assert verdicts(node.check_host(HostFacts(version, REQUIREMENTS, FITTING, "17")), "python") == [verdict]


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
    found = node.check_host(HostFacts((3, 12, 0), REQUIREMENTS, packages, "17"))
    assert verdicts(found, "packages") == [verdict]
    assert [item.subject for item in of(found, "packages")] == [*change] if verdict is not OK else [""]


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_requirement_of_the_project_is_read_whole(requirement: str) -> None:
    name, low, high = node.parse_requirement(requirement)
    assert requirement == f"{name}>={low}{f',<{high}' if high else ''}"


def test_requirements_are_those_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = ["apscheduler<4,>=3.11", "redis>=5.2", 'pytest>=8.3; extra == "test"']
    monkeypatch.setattr("importlib.metadata.requires", lambda _: installed)
    facts = doctor.collect_host_facts()
    assert facts.requirements == installed[:2]
    assert facts.packages.keys() == {"apscheduler", "redis"}
    assert node.parse_requirement(installed[0]) == ("apscheduler", "3.11", "4")
    assert verdicts(node.check_host(dataclasses.replace(facts, requirements=[])), "packages") == [WARNING]
    assert PROJECT["requires-python"] == f">={'.'.join(map(str, node.OLDEST_PYTHON))}"


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
    assert verdicts(node.check_host(HostFacts((3, 12, 0), REQUIREMENTS, packages, java)), "java") == [verdict]


def test_java_is_found_where_spark_would_find_it(tmp_path: Path) -> None:
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
    return read(None, {f"RECHANNEL_{name}": value for name, value in values.items()})


def test_configuration_and_keys(tmp_path: Path) -> None:
    fine = node.check_configuration(loaded(*KEYS), [], [])
    assert (verdicts(fine, "configuration"), verdicts(fine, "signing-keys")) == ([OK], [OK])
    path = tmp_path / "c.toml"
    path.write_text("[gate]\nmin_gain = 7\n")
    bad = node.check_configuration(
        read(path, {}),
        [
            "gate.min_gain: 7 is out of bounds; it must be between 0 and 1",
            "signing.private_key_file: /k cannot be read",
        ],
        ["redis.password_file: /p can be read by everybody; `chmod o= /p`"],
    )
    assert (verdicts(bad, "configuration"), verdicts(bad, "signing-keys")) == ([FAILED, WARNING], [FAILED])
    assert of(bad, "configuration")[0].sentence == f"{path}:2: gate.min_gain: 7 is out of bounds"
    assert of(bad, "configuration")[1].cure == "`chmod o= /p`"


def test_the_configuration_that_is_used_is_named(tmp_path: Path) -> None:
    (none,) = of(node.check_configuration(read(None, {}), [], []), "configuration")
    assert (none.verdict, "no configuration file: RECHANNEL_CONFIG is not set" in none.sentence) == (WARNING, True)
    path = tmp_path / "c.toml"
    path.write_text("")
    (found,) = of(node.check_configuration(read(None, {"RECHANNEL_CONFIG": str(path)}), [], []), "configuration")
    assert (found.verdict, f"configuration: {path} (RECHANNEL_CONFIG); " in found.sentence) == (OK, True)


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
def test_keys_that_are_missing_are_no_ok(user: str, fields: tuple[str, ...], verdict: Severity) -> None:
    given = loaded(*fields, user=user)
    _, notes = config.check_keys(loaded(user=user).settings)  # what it says of missing keys is not told as well
    found = of(node.check_configuration(given, [], notes), "signing-keys")
    assert [item.verdict for item in found] == [verdict], found
    assert all("nobody" not in item.sentence for item in found if item.verdict is OK)


def test_a_private_key_alone_is_a_warning(tmp_path: Path) -> None:
    private, _ = make_keys(tmp_path)
    path = tmp_path / "c.toml"
    path.write_text('[signing]\nprivate_key_file = "signing.key"\n')
    given = read(path, {})
    mistakes, notes = config.check_keys(given.settings)
    assert mistakes == []
    (found,) = of(node.check_configuration(given, mistakes, notes), "signing-keys")
    assert (found.verdict, found.cure) == (WARNING, "name signing.pub there"), private


def test_an_open_redis_is_told_with_a_cure_that_cures() -> None:
    found = node.check_configuration(loaded(*KEYS), [], [security.OPEN_REDIS])
    (told,) = of(found, "redis-rights")
    assert (told.verdict, "ACL SETUSER default off" in told.cure) == (WARNING, True)
    assert verdicts(found, "configuration") == [OK]


def test_every_note_has_a_cure_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECHANNEL_ZZZ", "1")
    notes = [
        security.OPEN_REDIS,
        security.NO_PUBLIC_KEYS,
        *security.listen_notes({"controller.listen": "0.0.0.0:1"}),
        *config._unknown_variables({"RECHANNEL_ZZZ": "1", "RECHANNEL_CONFG": "1"}),
    ]
    cures = [item.cure for item in node.check_configuration(loaded(*KEYS), [], notes) if item.verdict is WARNING]
    assert len(cures) == len(notes)
    assert "change that setting, or its file" not in cures


@pytest.mark.parametrize(
    ("variables", "verdict"),
    [
        ({}, OK),
        ({"CONTROLLER__PLACEMENT_TTL": "16"}, WARNING),
        ({"RESCHEDULE__TIMEOUT": "10"}, WARNING),
        ({"LINK__REPORT": "30"}, WARNING),
    ],
)
def test_times(variables: dict[str, str], verdict: Severity) -> None:
    settings = load(None, {f"RECHANNEL_{name}": value for name, value in variables.items()})
    assert verdicts(node.check_times(settings), "times") == [verdict]


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
    assert verdicts(node.check_redis(RedisFacts(INFO | change, 0.001, 0.0), 2.0), check) == [verdict]


@pytest.mark.parametrize(
    ("maxmemory", "verdict", "told"),
    [(0, OK, "not set"), (2**28, WARNING, "maxmemory is 256 MiB, but the keys of 100 nodes"), (2**30, OK, "1,024 MiB")],
)
def test_redis_has_room_for_what_the_cluster_may_come_to_hold(maxmemory: int, verdict: Severity, told: str) -> None:
    heard = [ApplicationFacts(f"app-{number}", report([query(["0"] * 200)])) for number in range(5)]
    found = cluster.check_memory(INFO | {"maxmemory": maxmemory}, [*heard, ApplicationFacts("silent", None)], 100)
    assert verdicts([found], "redis-memory") == [verdict]
    assert told in found.sentence and "5 applications" in found.sentence
    figure = capacity.need(100, [capacity.Application(executors=4, queries=1, partitions=200)] * 5)
    assert verdict is OK or f"maxmemory {figure / 2**20:.0f}mb" in found.cure


def test_a_slow_redis() -> None:
    assert verdicts(node.check_redis(RedisFacts(INFO, 0.6, 0.0), 2.0), "redis") == [WARNING]


@pytest.mark.parametrize(
    ("ahead", "seconds", "verdict"),
    [(0.2, 0.0, OK), (-2.0, 0.0, WARNING), (2.0, 1.5, OK), (30.0, 0.1, FAILED), (-30.0, 0.1, FAILED)],
)
def test_this_machines_clock(ahead: float, seconds: float, verdict: Severity) -> None:
    found = node.check_clock(RedisFacts(INFO, seconds, ahead))
    assert verdicts([found], "clock") == [verdict]
    if verdict is not OK:
        assert ("behind" in found.sentence) == (ahead > 0)


@pytest.mark.parametrize(
    ("ahead", "verdict"), [({}, OK), ({"a": 0.5, "b": -1.5}, OK), ({"a": 1.5}, WARNING), ({"a": -8.0}, FAILED)]
)
def test_clocks_of_the_parts(ahead: dict[str, float], verdict: Severity) -> None:
    assert verdicts(node.check_clocks(ahead), "clock-parts") == [verdict]


@pytest.mark.parametrize("role", Role)
def test_a_role_has_what_it_needs_and_no_more(role: Role) -> None:
    wanted = node.permissions_of(role)
    assert verdicts([node.check_permissions(RedisPermissions("u", None, wanted, False))], "redis-rights") == [OK]
    assert role in node.check_permissions(RedisPermissions("u", None, wanted, False)).sentence
    more = wanted | {("nothing-of-ours", "write")}
    assert verdicts([node.check_permissions(RedisPermissions("u", role, more, False))], "redis-rights") == [WARNING]
    for right in wanted:
        lacking = node.check_permissions(RedisPermissions("u", role, wanted - {right}, False))
        assert (lacking.verdict, right[0] in lacking.sentence) == (FAILED, True)


def test_users_of_no_role() -> None:
    assert node.check_permissions(RedisPermissions("default", None, frozenset(), True)).verdict is WARNING
    assert node.check_permissions(RedisPermissions("u", None, frozenset(), False)).verdict is FAILED


# -- the cluster --


def linked(**change: Any) -> LinkReport:
    return msgspec.structs.replace(report([query(["0", "1"])]), **({"environment": STOCK} | change))


def app(stages: dict[str, float] | None = None, **change: Any) -> ApplicationFacts:
    return ApplicationFacts(APP, linked(**change), stages=stages or {})


def test_controller() -> None:
    state = ControllerState(
        leader="a", since=NOW, epoch=1, paused=True, mode="apply", next_decision=NOW, last_sentence=""
    )
    assert verdicts([cluster.check_controller(state)], "controller") == [OK]
    assert verdicts([cluster.check_controller(None)], "controller") == [FAILED]


def test_who_leads_is_told_by_the_lease_in_doctor_and_status_alike() -> None:
    """What the leader said stands in Redis for a minute; it leads only for as long as its lease."""
    store = FakeStore(FakeClock())
    state = ControllerState(
        leader="a", since=NOW, epoch=1, paused=False, mode="apply", next_decision=NOW, last_sentence=""
    )
    store.put(keys.STATE, "", EnvelopeFactory("default", "controller", lambda: NOW).envelope(state, ttl=15.0))
    for later, leads in ((0.0, True), (14.9, True), (15.1, False), (52.0, False)):
        leader = leading(store, NOW + later)  # type: ignore[arg-type]
        found = cluster.check_controller(leader.state if leader is not None else None)
        document = status.collect(store, Settings(), NOW + later)  # type: ignore[arg-type]
        assert (found.verdict is OK, document["controller"] is not None) == (leads, leads), later


def test_agents() -> None:
    here = frozenset({(APP, "0")})
    cases = {
        "fine": (NodeFacts(here, window(0), 5.0), OK),
        "none": (NodeFacts(here, None), FAILED),
        "stale": (NodeFacts(here, window(0), 21.0), FAILED),
        "blind": (NodeFacts(here | {(APP, "9")}, window(0), 5.0), WARNING),
        "busy": (NodeFacts(here, msgspec.structs.replace(window(0), complete=0.5), 5.0), WARNING),
    }
    for name, (facts, verdict) in cases.items():
        assert verdicts(cluster.check_agents({name: facts}, 20.0), "agents") == [verdict], name
    assert verdicts(cluster.check_agents({}, 20.0), "agents") == [OK]


@pytest.mark.parametrize(
    ("application", "verdict", "words"),
    [
        (app(), OK, "Spark 4.3.0"),
        (ApplicationFacts(APP, None, unreadable=True), FAILED, "another schema"),
        (app(environment={}), WARNING, "older release"),
        (app(environment={**STOCK, "rechannel": "0.0.9"}), WARNING, "0.0.9"),
        (app(spark_version="3.4.1"), WARNING, "too old to be steered"),
        (app(rejected_messages=2), WARNING, "refused 2 messages"),
        (app(problems=["the disk is full; free some"]), WARNING, "the disk is full"),
        (app(queries=[query(["0"], problem="odd")]), WARNING, "odd"),
    ],
)
def test_links(application: ApplicationFacts, verdict: Severity, words: str) -> None:
    found = of(cluster.check_links([application]), "links")
    assert [item.verdict for item in found] == [verdict]
    assert words in found[0].sentence


def test_no_application_reports() -> None:
    (found,) = of(cluster.check_links([]), "links")
    assert (found.verdict, "rechannel submit" in found.cure) == (FAILED, True)
    silent = ApplicationFacts("gone", None)
    assert verdicts(cluster.check_links([silent]), "links") == [WARNING, FAILED]
    assert verdicts(cluster.check_links([silent, app()]), "links") == [WARNING, OK]


def pushed(*windows: tuple[float, float, int], ttl: float = 60) -> list[Envelope]:
    """Messages of agents: (start, end, sequence) of each window, in the order of their arrival."""
    found = []
    for start, end, sequence in windows:
        body = msgspec.structs.replace(window(0), start=start, end=end)
        envelope = EnvelopeFactory("default", "agent:n", lambda end=end: end).envelope(body, ttl=ttl)  # type: ignore[misc]
        found.append(msgspec.structs.replace(envelope, sequence=sequence, time=end + sequence / 1000))
    return found


@pytest.mark.parametrize("apart", [0.0, 0.1, 1.0, 2.5, 4.0, 4.9])
def test_two_agents_are_found_however_far_apart_they_began(apart: float) -> None:
    both = [(NOW + 5 * n + late, NOW + 5 * n + late + 5, n) for n in range(4) for late in (0.0, apart + 0.001)]
    assert cluster.has_several_agents(pushed(*both))


def test_two_agents_on_one_node() -> None:
    one = [(NOW + 5 * n, NOW + 5 * n + 5, n + 1) for n in range(10)]
    other = [(start + 1, end + 1, sequence + 70) for start, end, sequence in one]
    both = [item for pair in zip(one, other, strict=True) for item in pair]
    assert cluster.has_several_agents(pushed(*both))
    assert cluster.has_several_agents(pushed(*(item for pair in zip(one, one, strict=True) for item in pair))) is False
    assert not cluster.has_several_agents(pushed(*one))
    restarted = [*one[:5], (NOW + 24, NOW + 30, 1), *((start + 5, end + 5, n) for start, end, n in one[5:])]
    assert not cluster.has_several_agents(pushed(*restarted))
    set_back = [*one, *((start - 30, end - 30, n + 10) for start, end, n in one)]
    assert not cluster.has_several_agents(pushed(*set_back))
    assert not cluster.has_several_agents([])


def test_agents_that_are_too_many_or_nobodys() -> None:
    here = frozenset({(APP, "0")})
    idle = msgspec.structs.replace(window(0), executors=[])
    nodes = {"a": NodeFacts(here, window(0), 5.0, several=True), "b": NodeFacts(frozenset(), idle, 5.0)}
    found = cluster.check_agents(nodes, 20.0)
    assert [(item.subject, item.verdict) for item in of(found, "agents")] == [("a", WARNING), ("b", WARNING)]
    assert "more than one agent" in found[0].sentence
    assert "only on a" in found[1].sentence
    gone = {"a": NodeFacts(here, window(0), 5.0), "b": NodeFacts(frozenset(), idle, 21.0)}
    assert verdicts(cluster.check_agents(gone, 20.0), "agents") == [OK]
    nothing_runs = {"b": NodeFacts(frozenset(), idle, 5.0)}
    assert verdicts(cluster.check_agents(nothing_runs, 20.0), "agents") == [OK]
    (blind,) = cluster.check_agents({"a": NodeFacts(here, window(0), 5.0)}, 20.0, listed=False)
    assert "by an administrator of Redis alone" in blind.sentence


def test_what_is_said_of_settings_is_not_said_twice() -> None:
    given = {**STOCK, "spark.speculation": "true"}
    said = cluster.check_settings(given, APP)
    problem = f"{said[0].sentence}. {said[0].cure}."
    assert verdicts(cluster.check_links([app(environment=given, problems=[problem])]), "links") == [OK]


@pytest.mark.parametrize(
    ("check", "given", "verdict"),
    [
        ("spark-settings", {}, OK),
        ("spark-settings", {"spark.speculation": "true"}, WARNING),
        ("spark-settings", {"spark.dynamicAllocation.enabled": "true"}, WARNING),
        ("spark-settings", {"spark.sql.streaming.stateStore.unloadOnCommit": "true"}, WARNING),
        ("spark-settings", {"spark.locality.wait": "0"}, WARNING),
        (
            "spark-settings",
            {"spark.sql.streaming.statefulOperator.stateRebalancing.enabled": "true"},
            WARNING,
        ),
        ("spark-settings", {"spark.master": "local[4]"}, FAILED),
        ("spark-shuffle", {}, WARNING),
        ("spark-shuffle", {"spark.shuffle.sort.bypassMergeThreshold": "1"}, WARNING),
        ("spark-shuffle", {"spark.shuffle.sort.bypassMergeThreshold": "0"}, OK),
        ("spark-cores", {}, OK),
        ("spark-cores", {"spark.task.cpus": "2"}, WARNING),
        ("spark-scheduler", {}, OK),
        ("spark-scheduler", {"spark.scheduler.mode": "FAIR"}, OK),
        ("spark-scheduler", {"spark.scheduler.mode": "LIFO"}, WARNING),
    ],
)
def test_settings_of_spark(check: str, given: dict[str, str], verdict: Severity) -> None:
    assert verdicts(cluster.check_settings(given, APP), check) == [verdict]
    # A link tells what is needed to find the same from afar.
    told = environment(lambda key, default: given.get(key, default))
    assert verdicts(cluster.check_spark([app(environment=told)]), check) == [verdict]


@pytest.mark.parametrize(
    ("wait", "stage", "drifted", "verdict"),
    [
        ("3s", {}, 0, OK),
        ("odd", {"q": 1.0}, 0, OK),
        ("3s", {"q": 0.1}, 0, OK),
        ("3s", {"q": 9.0}, 0, OK),
        ("3s", {"p": 0.1, "q": 9.0}, 4, WARNING),
        ("20s", {"q": 1.0}, 0, WARNING),
        ("20s", {"q": 5.0}, 0, OK),
    ],
)
def test_locality_against_stages(wait: str, stage: dict[str, float], drifted: int, verdict: Severity) -> None:
    told = {**STOCK, "spark.locality.wait": wait}
    found = cluster.check_spark([app(stage, environment=told, drifted=drifted)])
    assert verdicts(found, "spark-locality") == [verdict]


@pytest.mark.parametrize(
    ("wait", "stage", "cure"), [("100ms", 0.2, "3s"), ("3s", 9.3, "19s"), ("3s", 20.0, "30s"), ("0", 0.1, "3s")]
)
def test_the_cure_for_drift_is_none_that_doctor_condemns(wait: str, stage: float, cure: str) -> None:
    (found,) = told_of_locality(wait, stage)
    assert (found.verdict, found.cure) == (WARNING, f"set spark.locality.wait to {cure}")
    settings = cluster.check_settings({"spark.locality.wait": cure}, APP)
    assert verdicts(settings, "spark-settings") == [OK]
    assert [item.verdict for item in told_of_locality(cure, stage)] == [OK]


def test_drift_in_stages_longer_than_any_wait_is_normal() -> None:
    (found,) = told_of_locality("3s", 40.0)
    assert (found.verdict, found.cure) == (OK, "")
    assert "some drift stays" in found.sentence


def told_of_locality(wait: str, stage: float) -> list[Finding]:
    told = {**STOCK, "spark.locality.wait": wait}
    found = cluster.check_spark([app({"q": stage}, environment=told, drifted=3)])
    return [item for item in found if item.check == "spark-locality"]


def test_how_long_stages_take() -> None:
    reports = [batch(number, ["0", "1"], {0: 1.0 + number}) for number in (7, 8, 9)]
    assert doctor.stage_seconds(reports, linked()) == {"name-of-q1": pytest.approx(9.0)}
    assert doctor.stage_seconds([], linked()) == {}


def test_what_a_link_tells_is_bounded_and_holds_versions() -> None:
    told = environment(lambda key, default: "x" * 9999)
    assert len(told) <= 64
    assert max(map(len, told.values())) <= 512
    assert STOCK["rechannel"] == __version__
    assert STOCK["spark.locality.wait"] == "3s"
    msgspec.json.decode(msgspec.json.encode(linked(environment=told)), type=LinkReport)


# -- the command --


def found(check: str, verdict: Severity) -> Finding:
    return Finding(check, verdict, "s", "c")


def test_the_exit_code_names_the_cause() -> None:
    assert exit_code_of([found("agents", WARNING), found("python", OK)]) == ExitCode.DONE
    assert exit_code_of([found("agents", FAILED)]) == ExitCode.NOT_READY
    assert exit_code_of([found("redis-role", FAILED), found("agents", FAILED)]) == ExitCode.REDIS
    assert exit_code_of([found("redis", FAILED), found("signing-keys", FAILED)]) == ExitCode.CONFIGURATION


def test_a_file_of_spark_settings_before_a_start(tmp_path: Path) -> None:
    path = tmp_path / "spark-defaults.conf"
    path.write_text(
        "# spark.speculation true\nspark.task.cpus   2\nspark.locality.wait=0\nspark.scheduler.mode : FAIR\n"
        "spark.executor.extraJavaOptions -Da=b \\\n   -Dc=d\n\n"
    )
    assert doctor.read_spark_properties(path) == {
        "spark.task.cpus": "2",
        "spark.locality.wait": "0",
        "spark.scheduler.mode": "FAIR",
        "spark.executor.extraJavaOptions": "-Da=b -Dc=d",
    }
    done = CliRunner().invoke(main, ["doctor", "--conf", str(path), "--json"])
    said = json.loads(done.stdout)
    assert (done.exit_code, said["ok"], said["counts"]) == (0, True, {"ok": 1, "warning": 3, "failed": 0})
    missing = CliRunner().invoke(main, ["doctor", "--conf", str(tmp_path / "none")])
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (1, True)


def test_a_wrong_configuration_is_told_whole_and_redis_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[gate]\nmin_gain = 7\n[agent]\nwindow = 0\n")
    done = CliRunner().invoke(main, ["doctor", "--config", str(path)])
    assert done.exit_code == 7
    assert all(words in done.stdout for words in ("gate.min_gain", "agent.window", "3 failed"))
    assert "redis" not in done.stdout.replace("redis.", "")


def test_a_redis_that_is_away(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    make_keys(tmp_path)
    signing = '[signing]\nprivate_key_file = "signing.key"\npublic_key_file = "signing.pub"\n'
    path.write_text(f'{signing}[redis]\nurl = "redis://127.0.0.1:1/0"\ntimeout = 0.2\n')
    done = CliRunner().invoke(main, ["doctor", "--config", str(path), "--json"])
    said = {item["check"]: item for item in json.loads(done.stdout)["checks"]}
    assert (done.exit_code, said["redis"]["verdict"]) == (5, "failed")
    assert said["redis"]["cure"]


def test_the_page_tells_of_every_check() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    headings = [line.removeprefix("### ").strip("`") for line in text.splitlines() if line.startswith("### ")]
    assert headings == [*CATALOG]
    for name in CATALOG:
        section = text.partition(f"### `{name}`")[2].partition("###")[0]
        assert CATALOG[name] in section, name
        assert "Cure:" in section, name
