"""Every policy on real parts: asked through the command line, applied by a running controller, and counted exactly.

Before each one all partitions are brought to a single executor, so that there is something to decide. Who asks for
nothing gets the policy of the configuration, under a controller that was started again with another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rechannel.policies.registry import POLICIES
from smoke.app import wrong_counts
from smoke.loop import PARTITIONS, Loop, open_loop
from testbed.spark_cluster import QUICK_CHECKPOINTS

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(1500)]
NODES = ["127.0.0.44", "127.0.0.45", "127.0.0.46"]
APP = "policies"
SKEWING = "even"  # with one slot, as the first controller is configured
# The first controller: nothing moves but what is asked for, as much at once as there is, and whatever it does to the
# only executor that gets it.
CONFIGURED = {
    "RECHANNEL_RESCHEDULE__MODE": "observe",
    "RECHANNEL_RESCHEDULE__TIMEOUT": "3600",
    "RECHANNEL_MIGRATION__MOVES_PER_EXECUTOR": str(2 * PARTITIONS),
    "RECHANNEL_GATE__MAX_UTILIZATION": "10",
    "RECHANNEL_POLICIES__EVEN__SLOTS": "1",
    "RECHANNEL_POLICIES__ADAPTIVE__LIMIT": "0.95",
    "RECHANNEL_POLICIES__FAIR_REDISTRIBUTION__LIMIT": "0.2",
}
# A policy may be well with where things are, and the law of utilization refuses what would saturate an executor.
NOT_MOVED = {"nothing-to-do", "utilization"}
# By these partitions leave an executor that has them all, whatever they measure.
SPREADING = {"adaptive", "round-robin", "data-locality"}

Where = dict[tuple[str, int, int], str]


@pytest.fixture(scope="module")
def loop(tmp_path_factory) -> Iterator[Loop]:
    with open_loop(tmp_path_factory.mktemp("policies"), NODES, (1, 1024)) as loop:
        loop.environment |= CONFIGURED
        loop.start_daemons(1)
        (loop.directory / APP).mkdir()
        (loop.directory / APP / "slow").touch()
        loop.start_application(APP, loop.cluster.conf(executor_cores=1) | QUICK_CHECKPOINTS)
        loop.wait("both queries run and are spread", lambda: len(where(loop)) == 2 * PARTITIONS and spread(loop))
        yield loop


@pytest.fixture(scope="module")
def came_of_it() -> dict[str, str]:
    """Policy -> what came of it."""
    return {}


def where(loop: Loop) -> Where:
    """The executor of every partition: query, stage and partition -> executor."""
    return {
        (query["query"], stage["stage"], partition): executor
        for query in loop.status(APP)["queries"]
        for stage in query["stages"]
        for executor, partitions in stage["placement"].items()
        for partition in partitions
    }


def spread(loop: Loop) -> bool:
    """The link has done what it does by itself."""
    texts = [query["start"] for query in loop.status(APP)["queries"]]
    return len(texts) == 2 and all("spread after its first batch" in text for text in texts) and at_rest(loop)


def at_rest(loop: Loop) -> bool:
    return not loop.status(APP)["moves"]


def requested(loop: Loop, *texts: str) -> dict[str, Any]:
    """Have it decide and move, until it is ready to; returns the decision."""
    answers: list[tuple[int, dict[str, Any]]] = []

    def answered() -> bool:
        answers.append(loop.cli("rebalance", *texts, "--apply", "--force", "--reason", "test"))
        return answers[-1][0] != 4

    loop.wait(f"an answer to {texts}", answered)
    code, answer = answers[-1]
    assert "decision" in answer, answer
    decision = answer["decision"]
    assert decision["notes"][0].endswith(": test")
    assert code == {"applied": 0, "planned": 3, "refused": 1}[decision["result"]], answer["sentence"]
    return decision


def moved(loop: Loop, policy: str, *, by_name: bool = True) -> str:
    """Rebalance by a policy and wait until all is where it wants it; returns what came of it."""
    loop.wait("nothing moves", lambda: at_rest(loop))
    before = where(loop)
    decision = requested(loop, *(("--policy", policy) if by_name else ()))
    recorded = next(entry for entry in loop.entries("decision") if entry["decision"] == decision["decision"])
    assert (recorded["policy"], recorded["trigger"], recorded["result"]) == (policy, "operator", decision["result"])
    if decision["result"] != "applied":
        assert decision["reason"] in {*NOT_MOVED, "law"}, decision["sentence"]
        codes = [decision["reason"], *(refusal["law"] for refusal in decision["refusals"])]
        assert codes[-1] in NOT_MOVED, decision["sentence"]
        assert decision["sentence"]
        return codes[-1]
    moves = {move["move"]: move for move in decision["moves"]}
    expected = before | {(move["query"], move["stage"], move["partition"]): move["target"] for move in moves.values()}
    assert expected != before
    loop.wait(f"all is where {policy} wants it", lambda: where(loop) == expected and at_rest(loop))
    last = {entry["move"]: entry["after"] for entry in loop.entries("move") if entry["move"] in moves}
    assert set(last) == set(moves)
    assert set(last.values()) <= {"drained", "killed"}, "every move has landed"
    counters = loop.status(APP)["counters"]
    assert (counters["failed_tasks"], counters["abandoned"]) == (0, 0)
    return f"{len(moves)} moves"


def skewed(loop: Loop) -> None:
    if len(set(where(loop).values())) > 1:
        moved(loop, SKEWING)


def test_streams_and_utilization_are_shown(loop: Loop):
    loop.wait("streams are measured", lambda: bool(loop.status(APP).get("streams")))
    status = loop.status(APP)
    assert set(status["streams"]) == {"high", "mid", "low"}
    assert sum(status["streams"].values()) > 0
    assert all(row["utilization"] > 0 for row in status["executors"])


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_it_is_asked_and_its_moves_land(loop: Loop, came_of_it: dict[str, str], policy: str):
    skewed(loop)
    came_of_it[policy] = moved(loop, policy) if policy != SKEWING else "brings all together here"
    print(f"{policy}: {came_of_it[policy]}")


def test_a_controller_started_again_decides_by_the_policy_it_is_configured_with(loop: Loop):
    skewed(loop)
    epoch = loop.document()["controller"]["epoch"]
    moved(loop, "adaptive", by_name=False)
    loop.group.kill("controller-1")
    loop.environment["RECHANNEL_RESCHEDULE__POLICY"] = "even"
    for name in ("RECHANNEL_POLICIES__EVEN__SLOTS", "RECHANNEL_GATE__MAX_UTILIZATION"):
        del loop.environment[name]
    loop.start_controller("controller-2")
    loop.wait("it leads", lambda: (loop.document().get("controller") or {}).get("epoch", 0) > epoch)
    moved(loop, "even", by_name=False)
    moved(loop, "first-fit")
    moved(loop, "even", by_name=False)


def test_the_output_is_exact_and_most_policies_moved_something(loop: Loop, came_of_it: dict[str, str]):
    loop.wait("nothing moves", lambda: at_rest(loop))
    assert loop.status(APP)["counters"]["failed_tasks"] == 0
    result = loop.stop_application(APP)
    assert (result["exceptions"], result["problem"], result["failures"]) == ({}, "", 0)
    assert wrong_counts(result) == {}
    assert set(came_of_it) == set(POLICIES)
    assert {policy for policy, texts in came_of_it.items() if texts.endswith("moves")} >= SPREADING
