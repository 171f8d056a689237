"""Every change of the cluster, on real parts: two applications on the same nodes, restarts, a drain, a node added, a
node's executor killed. One-core executors; no task attempt fails but those that died with the killed executor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from smoke.app import wrong_counts
from smoke.loop import PARTITIONS, Loop, open_loop
from testbed.spark_cluster import QUICK_CHECKPOINTS, WorkerSpec

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(2400)]
NODES = ["127.0.0.34", "127.0.0.35", "127.0.0.36"]
ADDED = "127.0.0.37"
WORKER = (2, 2048)
APPS = ("first", "second")


@pytest.fixture(scope="module")
def loop(tmp_path_factory) -> Iterator[Loop]:
    with open_loop(tmp_path_factory.mktemp("changes"), NODES, WORKER) as loop:
        loop.nodes = [*NODES, ADDED]
        loop.start_daemons(1)
        for name in APPS:
            (loop.directory / name).mkdir()
            (loop.directory / name / "slow").touch()  # two applications back to back leave two cores no breath
        (loop.directory / "first" / "idle").touch()
        for name in APPS:
            loop.start_application(name, conf(loop))
        yield loop


def conf(loop: Loop) -> dict[str, str]:
    # Each application may have one core of every worker's two.
    own = {"spark.cores.max": "3", "spark.deploy.maxExecutorRetries": "-1"}
    return loop.cluster.conf(executor_cores=1) | QUICK_CHECKPOINTS | own


def held(loop: Loop, name: str) -> dict[str, list[dict[str, int]]]:
    """Query -> for each of its stages the number of partitions on each node."""
    status = loop.status(name)
    node = {row["executor"]: row["node"] for row in status["executors"]}
    actual: dict[str, list[dict[str, int]]] = {}
    for query in status["queries"]:
        for stage in query["stages"]:
            count: dict[str, int] = {}
            for executor, partitions in stage["placement"].items():
                where = node.get(executor, "nowhere")
                count[where] = count.get(where, 0) + len(partitions)
            actual.setdefault(query["name"], []).append(count)
    return actual


def starts(loop: Loop, name: str) -> dict[str, str]:
    return {query["name"]: query["start"] for query in loop.status(name)["queries"]}


def on_all(loop: Loop, name: str, nodes: list[str], *, but: tuple[str, ...] = ()) -> bool:
    """Every query has partitions on all of these nodes and on no others."""
    stages = [count for query, counts in held(loop, name).items() if query not in but for count in counts]
    return bool(stages) and all(set(count) == set(nodes) for count in stages)


def failed(loop: Loop) -> list[int]:
    return [loop.status(name)["counters"]["failed_tasks"] for name in APPS]


def test_new_queries_are_spread_after_their_first_batch(loop: Loop):
    for name in APPS:
        expected = 3 if name == "first" else 2
        loop.wait(f"{name} runs", lambda name=name, expected=expected: len(held(loop, name)) == expected)
        loop.wait(
            f"the queries of {name} are spread",
            lambda name=name: all(
                "spread after its first batch" in sentence for sentence in starts(loop, name).values()
            ),
        )
        # Idle queries are steered, and move with their next batch.
        loop.wait("all nodes have some", lambda name=name: on_all(loop, name, NODES, but=("idle",)))


def test_a_restarted_query_gets_its_last_placement_back_before_its_first_batch(loop: Loop):
    loop.group.kill("controller-1")  # it takes none to put a query back, and nobody moves anything meanwhile
    loop.wait("nothing moves", lambda: not loop.status("first")["moves"])
    before = held(loop, "first")["counts"]
    (loop.directory / "first" / "restart").touch()
    loop.wait("it is put back", lambda: starts(loop, "first").get("counts", "").endswith("all landed"))
    sentence = starts(loop, "first")["counts"]
    assert (
        sentence
        == f"{PARTITIONS} of {PARTITIONS} partitions placed before its first batch, as they ran last; all landed"
    )
    assert held(loop, "first")["counts"] == before
    loop.start_controller("controller-2")


def test_a_restarted_driver_gets_its_last_placement_back(loop: Loop):
    assert wrong_counts(loop.stop_application("second")) == {}
    loop.start_application("second", conf(loop), generation=2)

    def back() -> bool:
        sentence = starts(loop, "second")
        return len(sentence) == 2 and all("as they ran last; " in text for text in sentence.values())

    loop.wait("both queries are put back", back)
    loop.wait("all nodes have some", lambda: on_all(loop, "second", NODES))


def test_a_drained_node_is_emptied_and_released_without_a_failed_task(loop: Loop):
    before = failed(loop)
    node = NODES[2]
    code, answer = loop.cli("drain", node, "--remove", "--reason", "a test")
    assert code == 0, answer
    assert loop.cli("drain", "127.0.0.99")[0] == 1, "nobody knows that node"

    def drain() -> dict[str, Any]:
        return next(row for row in loop.document()["drains"] if row["node"] == node)

    loop.wait("the node is released", lambda: drain()["state"] == "released")
    for name in APPS:
        loop.wait("the others hold all", lambda name=name: on_all(loop, name, NODES[:2], but=("idle",)))
    assert failed(loop) == before, "no task attempt failed"
    for _ in range(10):
        assert drain()["state"] == "released", "the master has room there, and keeps out"
    loop.cluster.stop_worker(node)


def test_drains_outlive_the_controller(loop: Loop):
    epoch = loop.document()["controller"]["epoch"]
    loop.group.kill("controller-2")
    loop.start_controller("controller-3")
    loop.wait("it leads", lambda: (loop.document().get("controller") or {}).get("epoch", 0) > epoch)
    assert [row["node"] for row in loop.document()["drains"]] == [NODES[2]]


def test_a_node_that_is_added_gets_its_share_though_another_is_drained(loop: Loop):
    loop.cluster.add_worker(WorkerSpec(ADDED, *WORKER, None))
    nodes = [*NODES[:2], ADDED]
    for name in APPS:
        loop.wait(f"{name} uses it", lambda name=name: on_all(loop, name, nodes, but=("idle",)))
    assert "executors" in {entry["trigger"] for entry in loop.entries("decision")}, "the change itself triggers"


def test_a_killed_executor_is_replaced_and_its_partitions_are_spread(loop: Loop):
    lost = {row["executor"] for name in APPS for row in loop.status(name)["executors"] if row["node"] == NODES[1]}
    assert lost
    old = {name: {row["executor"] for row in loop.status(name)["executors"]} for name in APPS}
    loop.cluster.kill_executor(NODES[1])
    nodes = [*NODES[:2], ADDED]
    for name in APPS:
        loop.wait(
            f"the executor of {name} is replaced",
            lambda name=name: bool({row["executor"] for row in loop.status(name)["executors"]} - old[name]),
        )
        loop.wait(f"{name} uses the new one", lambda name=name: on_all(loop, name, nodes, but=("idle",)))


def test_an_undrained_node_gets_its_share_again(loop: Loop):
    assert loop.cli("undrain", NODES[0])[0] == 1, "it is not drained"
    assert loop.cli("undrain", NODES[2])[0] == 0
    assert loop.document()["drains"] == []
    # The applications have no core left for a fourth executor: room is made on the first node.
    loop.cluster.add_worker(WorkerSpec(NODES[2], *WORKER, None))
    assert loop.cli("drain", NODES[0], "--remove")[0] == 0
    loop.wait("the first node is empty", lambda: loop.document()["drains"][0]["state"] in ("releasing", "released"))
    loop.cluster.stop_worker(NODES[0])
    nodes = [NODES[1], NODES[2], ADDED]
    for name in APPS:
        loop.wait(f"{name} is back there", lambda name=name: on_all(loop, name, nodes, but=("idle",)))


def test_all_that_was_counted_is_exact(loop: Loop):
    for name, generation in (("first", 1), ("second", 2)):
        result = loop.stop_application(name, generation=generation)
        assert (result["exceptions"], result["problem"], result["failures"]) == ({}, "", 0)
        assert wrong_counts(result) == {}
