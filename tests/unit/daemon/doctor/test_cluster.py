"""Checks of controller, agents, links and Spark, with and without a problem."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rechannel import __version__
from rechannel.conf.settings import Settings
from rechannel.daemon.cli import doctor
from rechannel.daemon.doctor import cluster
from rechannel.daemon.doctor.cluster import ApplicationFacts, NodeFacts
from rechannel.daemon.doctor.finding import Finding, Severity
from rechannel.daemon.view.last_leader import leading
from rechannel.daemon.view.status_builder import read_status
from rechannel.migration.link.report import environment
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, EnvelopeFactory
from rechannel.wire.messages import LinkReport
from unit import sample_messages as samples
from unit.daemon.doctor.checks import FAILED, OK, WARNING, of, verdicts
from unit.daemon.fake_store import NOW, FakeClock, FakeStore
from unit.daemon.fakes import APP, batch, query, report, window

STOCK = environment(lambda _, default: default)


def linked(**change: Any) -> LinkReport:
    return msgspec.structs.replace(report([query(["0", "1"])]), **({"environment": STOCK} | change))


def app(stages: dict[str, float] | None = None, **change: Any) -> ApplicationFacts:
    return ApplicationFacts(APP, linked(**change), stages=stages or {})


def test_controller() -> None:
    assert verdicts([cluster.check_controller(samples.controller_state(paused=True))], "controller") == [OK]
    assert verdicts([cluster.check_controller(None)], "controller") == [FAILED]


def test_the_lease_decides_who_leads_in_doctor_and_status() -> None:
    """The state of a leader stays in Redis for a minute, longer than its lease."""
    store = FakeStore(FakeClock())
    envelope = EnvelopeFactory("default", "controller", lambda: NOW).envelope(samples.controller_state(), ttl=15.0)
    store.put(keys.STATE, "", envelope)
    for later, leads in ((0.0, True), (14.9, True), (15.1, False), (52.0, False)):
        leader = leading(store, NOW + later)  # type: ignore[arg-type]
        finding = cluster.check_controller(leader.state if leader is not None else None)
        status = read_status(store, Settings(), NOW + later)  # type: ignore[arg-type]
        assert (finding.verdict is OK, status.controller is not None) == (leads, leads), later


def test_agents() -> None:
    here = frozenset({(APP, "0")})
    for name, facts, verdict in (
        ("fine", NodeFacts(here, window(0), 5.0), OK),
        ("stale", NodeFacts(here, window(0), 21.0), FAILED),
        ("blind", NodeFacts(here | {(APP, "9")}, window(0), 5.0), WARNING),
        ("busy", NodeFacts(here, msgspec.structs.replace(window(0), complete=0.5), 5.0), WARNING),
    ):
        assert verdicts(cluster.check_agents({name: facts}, 20.0), "agents") == [verdict], name
    assert verdicts(cluster.check_agents({}, 20.0), "agents") == [OK]
    some = cluster.check_agents({"a": NodeFacts(here, window(0), 5.0), "b": NodeFacts(here, None)}, 20.0)
    assert [(item.subject, item.verdict) for item in some] == [("b", FAILED)]
    (nowhere,) = cluster.check_agents({"a": NodeFacts(here, None), "b": NodeFacts(here, None)}, 20.0)
    assert nowhere.verdict is WARNING, "as in a solo run: decisions need no agents"
    assert "any of the 2 nodes" in nowhere.sentence


@pytest.mark.parametrize(
    ("application", "verdict", "phrase"),
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
def test_links(application: ApplicationFacts, verdict: Severity, phrase: str) -> None:
    findings = of(cluster.check_links([application]), "links")
    assert [item.verdict for item in findings] == [verdict]
    assert phrase in findings[0].sentence


def test_no_application_reports() -> None:
    (finding,) = of(cluster.check_links([]), "links")
    assert (finding.verdict, "rechannel submit" in finding.cure) == (FAILED, True)
    silent = ApplicationFacts("gone", None)
    assert verdicts(cluster.check_links([silent]), "links") == [WARNING, FAILED]
    assert verdicts(cluster.check_links([silent, app()]), "links") == [WARNING, OK]


def pushed(*windows: tuple[float, float, int]) -> list[Envelope]:
    """Messages of agents: (start, end, sequence) of each window, in the order of their arrival."""
    findings = []
    for start, end, sequence in windows:
        body = msgspec.structs.replace(window(0), start=start, end=end)
        envelope = EnvelopeFactory("default", "agent:n", lambda end=end: end).envelope(body, ttl=60)  # type: ignore[misc]
        findings.append(msgspec.structs.replace(envelope, sequence=sequence, time=end + sequence / 1000))
    return findings


@pytest.mark.parametrize("apart", [0.0, 0.1, 1.0, 2.5, 4.0, 4.9])
def test_two_agents_are_detected_at_any_offset(apart: float) -> None:
    both = [(NOW + 5 * n + late, NOW + 5 * n + late + 5, n) for n in range(4) for late in (0.0, apart + 0.001)]
    assert cluster.has_several_agents(pushed(*both))


def test_one_agent_is_not_taken_for_two() -> None:
    one = [(NOW + 5 * n, NOW + 5 * n + 5, n + 1) for n in range(10)]
    assert not cluster.has_several_agents(pushed(*one))
    assert not cluster.has_several_agents(pushed(*(item for item in one for _ in range(2)))), "each was sent twice"
    restarted = [*one[:5], (NOW + 24, NOW + 30, 1), *((start + 5, end + 5, n) for start, end, n in one[5:])]
    assert not cluster.has_several_agents(pushed(*restarted))
    set_back = [*one, *((start - 30, end - 30, n + 10) for start, end, n in one)]
    assert not cluster.has_several_agents(pushed(*set_back))
    assert not cluster.has_several_agents([])


def test_duplicate_and_unexpected_agents() -> None:
    here = frozenset({(APP, "0")})
    idle = msgspec.structs.replace(window(0), executors=[])
    nodes = {"a": NodeFacts(here, window(0), 5.0, several=True), "b": NodeFacts(frozenset(), idle, 5.0)}
    findings = cluster.check_agents(nodes, 20.0)
    assert [(item.subject, item.verdict) for item in of(findings, "agents")] == [("a", WARNING), ("b", WARNING)]
    assert "more than one agent" in findings[0].sentence
    assert "only on a" in findings[1].sentence
    gone = {"a": NodeFacts(here, window(0), 5.0), "b": NodeFacts(frozenset(), idle, 21.0)}
    assert verdicts(cluster.check_agents(gone, 20.0), "agents") == [OK]
    nothing_runs = {"b": NodeFacts(frozenset(), idle, 5.0)}
    assert verdicts(cluster.check_agents(nothing_runs, 20.0), "agents") == [OK]
    (blind,) = cluster.check_agents({"a": NodeFacts(here, window(0), 5.0)}, 20.0, listed=False)
    assert "by an administrator of Redis alone" in blind.sentence


def test_cpu_limits_of_executors_are_named() -> None:
    limited = msgspec.structs.replace(
        window(0), executors=[msgspec.structs.replace(window(0).executors[0], cpu_limit=0.5)]
    )
    (finding,) = cluster.check_agents({"a": NodeFacts(frozenset({(APP, "0")}), limited, 5.0)}, 20.0)
    assert finding.verdict == OK
    assert finding.sentence.endswith("each measured; executors with a CPU limit: 1, the lowest 0.5 cores")


def test_problems_of_settings_are_reported_once() -> None:
    changed = {**STOCK, "spark.speculation": "true"}
    finding_of_settings = cluster.check_settings(changed, APP)
    problem = f"{finding_of_settings[0].sentence}. {finding_of_settings[0].cure}."
    assert verdicts(cluster.check_links([app(environment=changed, problems=[problem])]), "links") == [OK]


@pytest.mark.parametrize(
    ("check", "changed", "verdict"),
    [
        ("spark-settings", {}, OK),
        ("spark-settings", {"spark.speculation": "true"}, WARNING),
        ("spark-settings", {"spark.dynamicAllocation.enabled": "true"}, WARNING),
        ("spark-settings", {"spark.sql.streaming.stateStore.unloadOnCommit": "true"}, WARNING),
        ("spark-settings", {"spark.locality.wait": "0"}, WARNING),
        ("spark-settings", {"spark.sql.streaming.statefulOperator.stateRebalancing.enabled": "true"}, WARNING),
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
def test_settings_of_spark(check: str, changed: dict[str, str], verdict: Severity) -> None:
    assert verdicts(cluster.check_settings(changed, APP), check) == [verdict]
    # The report of a link has the settings that the same checks need.
    reported = environment(lambda key, default: changed.get(key, default))
    assert verdicts(cluster.check_spark([app(environment=reported)]), check) == [verdict]


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
    reported = {**STOCK, "spark.locality.wait": wait}
    findings = cluster.check_spark([app(stage, environment=reported, drifted_partitions=drifted)])
    assert verdicts(findings, "spark-locality") == [verdict]


@pytest.mark.parametrize(
    ("wait", "stage", "cure"), [("100ms", 0.2, "3s"), ("3s", 9.3, "19s"), ("3s", 20.0, "30s"), ("0", 0.1, "3s")]
)
def test_the_cure_for_drift_passes_the_other_checks(wait: str, stage: float, cure: str) -> None:
    (finding,) = locality_findings(wait, stage)
    assert (finding.verdict, finding.cure) == (WARNING, f"set spark.locality.wait to {cure}")
    settings = cluster.check_settings({"spark.locality.wait": cure}, APP)
    assert verdicts(settings, "spark-settings") == [OK]
    assert [item.verdict for item in locality_findings(cure, stage)] == [OK]
    (normal,) = locality_findings("3s", 40.0)  # longer than any wait that is advised
    assert (normal.verdict, normal.cure, "some drift stays" in normal.sentence) == (OK, "", True)


def test_the_wait_for_an_executor_counts_where_it_is_set_by_itself() -> None:
    reported = {**STOCK, "spark.locality.wait": "3s", "spark.locality.wait.process": "20s"}
    findings = cluster.check_spark([app({"q": 8.0}, environment=reported, drifted_partitions=4)])
    (finding,) = [item for item in findings if item.check == "spark-locality"]
    assert (finding.verdict, "spark.locality.wait.process is 20s" in finding.sentence) == (OK, True)


def locality_findings(wait: str, stage: float) -> list[Finding]:
    reported = {**STOCK, "spark.locality.wait": wait}
    findings = cluster.check_spark([app({"q": stage}, environment=reported, drifted_partitions=3)])
    return [item for item in findings if item.check == "spark-locality"]


def test_durations_of_stages() -> None:
    reports = [batch(number, ["0", "1"], {0: 1.0 + number}) for number in (7, 8, 9)]
    assert doctor.stage_seconds(reports, linked()) == {"name-of-q1": pytest.approx(9.0)}
    assert doctor.stage_seconds([], linked()) == {}


def test_the_environment_of_a_link_is_bounded() -> None:
    reported = environment(lambda key, default: "x" * 9999)
    assert len(reported) <= 64
    assert max(map(len, reported.values())) <= 512
    assert STOCK["rechannel"] == __version__
    assert STOCK["spark.locality.wait"] == "3s"
    msgspec.json.decode(msgspec.json.encode(linked(environment=reported)), type=LinkReport)
