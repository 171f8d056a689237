"""Migrations on real Spark: saved, applied, taken over from a killed controller, measured, undone, stopped, cut off.

Two executors whose partitions all change places, a step in every batch: the longest migration there can be here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rechannel.wire import keys
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.messages import LinkReport
from smoke.app import wrong_counts
from smoke.loop import PARTITIONS, Loop, open_loop
from testbed.spark_cluster import QUICK_CHECKPOINTS
from testbed.stack import next_executors, saved_plan

pytestmark = [pytest.mark.spark, pytest.mark.redis]
NODES = ["127.0.0.36", "127.0.0.37"]
APP = "moving"
ENDS = {"killed", "abandoned", "drained", "released_idle"}


@pytest.fixture(scope="module")
def loop(tmp_path_factory) -> Iterator[Loop]:
    with open_loop(tmp_path_factory.mktemp("moving"), NODES, (2, 1024)) as loop:
        loop.environment |= {
            "RECHANNEL_RESCHEDULE__MODE": "observe",
            "RECHANNEL_MIGRATION__SETTLE_BATCHES": "3",
            "RECHANNEL_GATE__MAX_UTILIZATION": "10",  # the highest value: these plans overload a busy machine
        }
        loop.start_daemons(1)
        loop.start_application(APP, loop.cluster.conf(executor_cores=2) | QUICK_CHECKPOINTS)
        loop.wait("everything is measured", lambda: loop.status(APP).get("readiness", {}).get("ready", False))
        loop.wait("both queries are spread", lambda: [len(set(held)) for held in placements(loop).values()] == [2, 2])
        loop.wait("what the link did by itself is over", lambda: not loop.status(APP)["moves"])
        yield loop


def report(loop: Loop) -> LinkReport:
    with loop.open_store() as store:
        envelope = store.get(keys.REPORT, loop.status(APP).get("application", "none"))
    assert envelope is not None
    assert isinstance(envelope.body, LinkReport)
    return envelope.body


def placements(loop: Loop) -> dict[str, list[str]]:
    return {query.name: query.stages[0].placement for query in report(loop).queries if query.stages}


def apply(loop: Loop, path: Path) -> str:
    """Have every partition go to the other executor; return the decision."""
    latest = report(loop)
    plan = saved_plan("smoke", loop.status(APP)["application"], latest, next_executors(latest))
    path.write_text(json.dumps(plan))
    code, answer = loop.cli("apply", str(path), "--force", "--reason", "a test")
    assert code == 0, answer
    assert len(answer["decision"]["moves"]) == 2 * PARTITIONS
    assert answer["decision"]["migration_cost"]["steps"] >= PARTITIONS
    return str(answer["decision"]["decision"])


def logged(loop: Loop, decision: str) -> list[dict[str, Any]]:
    return [entry for entry in loop.entries("move") if entry["decision"] == decision]


def drained(loop: Loop, decision: str) -> int:
    return sum(entry["after"] == "drained" for entry in logged(loop, decision))


def settled(loop: Loop, decision: str) -> bool:
    last = {entry["move"]: entry["after"] for entry in logged(loop, decision)}
    return len(last) == 2 * PARTITIONS and set(last.values()) <= ENDS


def test_a_new_leader_takes_over_in_the_middle_and_nothing_is_done_twice(loop: Loop, tmp_path: Path):
    before = placements(loop)
    decision = apply(loop, tmp_path / "plan.json")
    loop.wait("some have landed", lambda: drained(loop, decision) >= 3)
    loop.group.kill("controller-1")
    assert not settled(loop, decision)
    loop.start_controller("controller-2")
    loop.wait("all have landed", lambda: drained(loop, decision) == 2 * PARTITIONS)
    steps = Counter((entry["move"], entry["after"]) for entry in logged(loop, decision) if entry["after"] != "steered")
    assert set(steps.values()) == {1}, "each step of each move was taken once"

    def moved() -> list[bool]:
        after = placements(loop)
        return [held != was for name in before for held, was in zip(after[name], before[name], strict=True)]

    loop.wait("the next report has them where they landed", lambda: moved() == [True] * 2 * PARTITIONS)


def test_the_next_step_is_prepared_while_this_one_loads(loop: Loop):
    entries = loop.entries("move")
    at = {(entry["decision"], entry["step"], entry["after"]): entry["at"] for entry in reversed(entries)}
    overlapping = [
        (decision, step)
        for (decision, step, after), landed in at.items()
        if after == "drained" and at.get((decision, step + 1, "prepared"), landed) < landed
    ]
    assert overlapping


def test_the_outcome_is_told_beside_the_prediction(loop: Loop):
    loop.wait("the outcome is told", lambda: bool(loop.entries("outcome")))
    outcome = loop.entries("outcome")[-1]
    assert outcome["landed"] == 2 * PARTITIONS
    assert len(outcome["loads"]) == 2 * PARTITIONS
    assert all(size > 0 for size, _ in outcome["loads"])
    assert set(outcome["peak"]) == set(outcome["predicted"]["peak"])
    code, answer = loop.cli("plan", "--force", "--policy", "round-robin")
    assert code in (0, 3), answer
    cost = answer["decision"]["migration_cost"]
    assert cost is None or cost["moves"] == 2 * PARTITIONS, "the next cost has learned from it"


def test_rollback_brings_every_partition_back(loop: Loop):
    before = placements(loop)
    code, answer = loop.cli("rollback", "--reason", "a test")
    assert code == 0, answer
    undone = next(entry for entry in reversed(loop.entries("decision")) if entry["trigger"] == "rollback")
    assert undone["result"] == "applied"
    loop.wait("all are back", lambda: drained(loop, undone["decision"]) == 2 * PARTITIONS)
    assert all(set(map(int, before[name])) == {0, 1} for name in before)
    swapped = {name: [str(1 - int(where)) for where in held] for name, held in before.items()}
    loop.wait("the report says so too", lambda: placements(loop) == swapped)


def test_stop_leaves_nothing_in_flight(loop: Loop, tmp_path: Path):
    decision = apply(loop, tmp_path / "plan.json")
    loop.wait("one has landed", lambda: drained(loop, decision) >= 1)
    code, answer = loop.cli("stop", "--reason", "a test")
    assert code == 0, answer
    loop.wait("nothing is in flight", lambda: settled(loop, decision))
    last = {entry["move"]: entry for entry in logged(loop, decision)}
    given_up = [entry for entry in last.values() if entry["after"] == "abandoned"]
    assert given_up, "it was stopped in the middle"
    assert {entry["reason"] for entry in given_up} == {"superseded"}
    assert drained(loop, decision) < 2 * PARTITIONS
    landed = [entry for entry in last.values() if entry["after"] != "abandoned"]
    # The journal is ahead of the report, from which the next test writes its plan.
    loop.wait(
        "the report says so too",
        lambda: all(placements(loop)[entry["name"]][entry["partition"]] == entry["target"] for entry in landed),
    )


def test_a_driver_that_dies_in_the_middle_goes_on_with_nothing_half_done(loop: Loop, tmp_path: Path):
    decision = apply(loop, tmp_path / "plan.json")
    loop.wait("one has landed", lambda: drained(loop, decision) >= 1)
    assert loop.status(APP)["counters"]["failed_tasks"] == 0
    application = loop.status(APP)["application"]
    loop.group.kill(f"{APP}-1")
    loop.start_application(APP, loop.cluster.conf(executor_cores=2) | QUICK_CHECKPOINTS, generation=2)
    loop.wait("it is another application", lambda: loop.status(APP).get("application", application) != application)
    loop.wait("everything is measured", lambda: loop.status(APP).get("readiness", {}).get("ready", False))
    loop.wait("what the link did by itself is over", lambda: not loop.status(APP)["moves"])
    code, answer = loop.cli("apply", str(tmp_path / "plan.json"), "--force")
    # The plan's application is listed for a minute after its driver.
    reasons = {ExitCode.NOT_READY: "driver last reported", ExitCode.REFUSED: f"unknown application {application}"}
    assert reasons[ExitCode(code)] in json.dumps(answer)
    again = apply(loop, tmp_path / "plan.json")
    loop.wait("all have landed", lambda: drained(loop, again) == 2 * PARTITIONS)


def test_the_output_is_exact_and_no_task_failed(loop: Loop):
    assert loop.status(APP)["counters"]["failed_tasks"] == 0
    result = loop.stop_application(APP, generation=2)
    assert result["exceptions"] == {}
    assert wrong_counts(result) == {}
