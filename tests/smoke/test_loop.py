"""The whole loop on real parts: a running application gets a second node, and its partitions move there by themselves.

Real Redis, a real standalone cluster with two-core executors, agents and controller as processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from smoke.app import wrong_counts
from smoke.loop import Loop, open_loop
from testbed.spark_cluster import QUICK_CHECKPOINTS, WorkerSpec

pytestmark = [pytest.mark.spark, pytest.mark.redis]
NODES = ["127.0.0.32", "127.0.0.33"]
APP = "smoke"


def driver_log(loop: Loop) -> str:
    return (loop.group.log_dir / f"{APP}-1.log").read_text(errors="replace")


@pytest.fixture(scope="module")
def loop(tmp_path_factory) -> Iterator[Loop]:
    with open_loop(tmp_path_factory.mktemp("loop"), NODES[:1], (2, 1024)) as loop:
        loop.nodes = list(NODES)
        loop.start_daemons(1)
        loop.start_application(APP, loop.cluster.conf(executor_cores=2) | QUICK_CHECKPOINTS)
        yield loop


def test_a_new_executor_gets_its_share_while_the_queries_run(loop: Loop):
    def placements() -> list[dict[str, list[int]]]:
        return [stage["placement"] for query in loop.status(APP)["queries"] for stage in query["stages"]]

    loop.wait("both queries run", lambda: [set(placement) for placement in placements()] == [{"0"}, {"0"}])
    loop.cluster.add_worker(WorkerSpec(NODES[1], 2, 1024, None))
    loop.wait("it is warmed", lambda: "executors-warmed" in driver_log(loop))
    assert "missed=[]" in driver_log(loop), "the job ran where it should"
    loop.wait("moves are drained", lambda: loop.states().count("drained") >= 4)
    loop.wait(  # how many of which query is the policy's choice, from what it has measured
        "partitions are spread",
        lambda: all(sum(len(placement.get(name, [])) for placement in placements()) >= 4 for name in ("0", "1")),
    )
    assert "timeout" in {entry["trigger"] for entry in loop.entries("decision")}, "the controller fires by itself"
    loop.wait("old copies are killed", lambda: "killed" in loop.states())
    evidence = [entry["evidence"] for entry in loop.entries("move") if entry["after"] == "killed"]
    assert any("Closed StateStoreProviderId" in text for text in evidence), "by the executor's own word"


def test_stream_sizes_are_sparks_own(loop: Loop):
    """The agents' sizes for each reducer are the bytes that Spark says this reducer fetched, rounded down by 1 %."""

    def compared() -> tuple[int, dict[tuple[int, int], tuple[int, int]]]:
        batches, outputs = loop.measured(APP)
        rows = {task: output.read_sizes() for task, output in outputs.items()}
        count, different = 0, {}
        for batch in batches:
            tasks = {run.spark_stage: run.tasks for run in batch.stages}
            for run in batch.stages:
                senders = [task.task for parent in run.parents for task in tasks.get(parent, [])]
                if not senders or any(task not in rows for task in senders):
                    continue  # the agent's window is not closed yet, or older than what is kept
                for reader in run.tasks:
                    count += 1
                    read_off = int(sum(rows[task][reader.partition] for task in senders))
                    fetched = reader.bytes_local + reader.bytes_remote
                    if not 0.99 * fetched <= read_off <= fetched:
                        different[batch.batch, reader.task] = (read_off, fetched)
        return count, different

    loop.wait("a hundred reducers are measured", lambda: compared()[0] >= 100)
    assert compared()[1] == {}
    batches, _ = loop.measured(APP)
    readers = [task for batch in batches for run in batch.stages if run.parents for task in run.tasks]
    assert sum(task.bytes_local for task in readers) > 0
    assert sum(task.bytes_remote for task in readers) > 0
    loop.wait("nearly all shuffles are seen", lambda: (loop.status(APP).get("shuffles_seen") or 0) >= 0.9)


def test_moving_failed_no_task_and_garbage_is_counted(loop: Loop):
    counters = loop.status(APP)["counters"]
    assert counters["landed"] >= 4
    assert (counters["failed_tasks"], counters["rejected_messages"]) == (0, 0)
    application = loop.status(APP)["application"]
    client = redis.Redis(unix_socket_path=str(loop.redis.socket_path))

    def counted() -> bool:
        # Again and again: a controller that follows a migration puts its own word there, as it should.
        client.set(f"rechannel:{{smoke}}:app:{application}:desired", '{"schema":2,"signature":"\u00e9"}')
        return loop.status(APP)["counters"]["rejected_messages"] > 0

    loop.wait("the garbage is counted", counted)
    client.close()


def test_all_of_ours_may_be_killed_and_the_queries_go_on(loop: Loop):
    epoch = loop.document()["controller"]["epoch"]
    before = loop.commits(APP)
    for name in [name for name in loop.group.processes if name.startswith(("controller", "agent"))]:
        loop.group.kill(name)
    loop.redis.kill()
    assert loop.cli("status")[0] == 5, "Redis is away"
    loop.wait("batches are committed", lambda: all(a >= b + 2 for a, b in zip(loop.commits(APP), before, strict=True)))
    loop.redis.start()
    assert loop.cli("rebalance", "--apply", "--wait", "1")[0] == 6, "nobody leads"
    loop.start_daemons(2)
    loop.wait("an emptied Redis is filled again", lambda: loop.status(APP).get("readiness", {}).get("ready", False))
    # One that led before the link's first report raises its epoch once it has read that: an old leader is refused then.
    loop.wait("a controller leads anew", lambda: (loop.document().get("controller") or {}).get("epoch", 0) > epoch)


def test_a_lost_executor_is_replaced_and_gets_its_share_again(loop: Loop):
    lost = {row["executor"] for row in loop.status(APP)["executors"] if row["node"] == NODES[1]}
    loop.cluster.kill_executor(NODES[1])

    def settled() -> bool:
        status = loop.status(APP)
        names = {row["executor"] for row in status.get("executors", [])}
        held = [set(stage["placement"]) for query in status["queries"] for stage in query["stages"]]
        return len(names) == 2 and not names & lost and all(placement == names for placement in held)

    loop.wait("both executors hold partitions of both queries", settled)


def test_the_output_is_exact_and_nothing_is_left_behind(loop: Loop):
    result = loop.stop_application(APP)
    assert result["exceptions"] == {}
    assert (result["problem"], result["failures"]) == ("", 0)
    assert wrong_counts(result) == {}
    assert result["link_directories"] == [1, 0], "one while attached, none after it"
