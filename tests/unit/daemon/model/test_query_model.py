"""Model of one query: bytes that another executor loads, and shuffles by the map outputs of agents."""

from __future__ import annotations

import math
from array import array

import msgspec
import numpy as np
import pytest

from rechannel.daemon.model import query_model
from rechannel.policies.analysis.service_rate import Observations
from rechannel.wire.measurements import MapOutput, StageRun
from unit.daemon.fakes import APP, QUERY, batch, query, report, task, window
from unit.daemon.model.builders import with_tasks
from unit.daemon.model.test_snapshot import BATCHES, WHERE, WINDOWS, outputs_of, ready


def test_what_another_executor_loads_is_the_state_and_what_came_after_its_snapshot() -> None:
    rows = [(task(0, 0, "0", rows=50), 400), (task(1, 1, "0", rows=50), 0)]
    tasks = [msgspec.structs.replace(row, state_rows=200, state_size=size) for row, size in rows]
    stages = [StageRun(spark_stage=1, parents=[], stateful_stage=0, tasks=tasks)]
    item = msgspec.structs.replace(batch(9, "00"), stages=stages)
    (stage,) = query("00").stages
    assert query_model.load_bytes(stage, QUERY, [item]).tolist() == [400.0, 1000.0], "without its size, what it takes"
    aged = msgspec.structs.replace(stage, snapshot_lag=[4, -1])
    aged_bytes = [400.0 + 4 * 100.0, 1000.0 + 4 * 250.0]  # one that was not asked for is as old as the others
    assert query_model.load_bytes(aged, QUERY, [item]).tolist() == aged_bytes
    assert query_model.load_bytes(aged, "another", [item]).tolist() == [0.0, 0.0]


def map_outputs(numbers: tuple[int, ...] = (7, 8, 9)) -> list[MapOutput]:
    return [MapOutput(APP, str(e), 0, number * 1000 + e, [100 * e, 10, 0, 0]) for number in numbers for e in range(4)]


def test_map_outputs_are_joined_by_task_id() -> None:
    windows = {
        f"127.0.0.{e + 2}": [window(e, map_outputs=[output for output in map_outputs() if output.executor == str(e)])]
        for e in range(4)
    }
    (shuffle,) = ready(windows=windows).workload.shuffles
    assert (shuffle.upstream, shuffle.downstream) == (f"{QUERY}/f0", f"{QUERY}/0")
    expected = np.array([[0, 10, 0, 0], [100, 10, 0, 0], [200, 10, 0, 0], [300, 10, 0, 0]])
    np.testing.assert_allclose(shuffle.matrix(), expected * 0.2)


@pytest.mark.parametrize(
    ("outputs", "note"),
    [
        pytest.param([MapOutput("other", "0", 0, 9000, [1, 1, 1, 1])], "", id="another application's"),
        pytest.param([MapOutput(APP, "0", 0, 123456, [1, 1, 1, 1])], "", id="a task nobody reported"),
        pytest.param([MapOutput(APP, "0", 0, 9000, [1, 1])], "fits no stage", id="other partitions"),
        pytest.param([MapOutput(APP, "0", 0, 9000, [-1, 1, 1, 1])], "fits no stage", id="negative"),
        pytest.param([MapOutput(APP, "0", 0, 9000, [])], "fits no stage", id="no sizes"),
        pytest.param([MapOutput(APP, "0", 0, 9000, array("f", [math.nan] * 4))], "fits no stage", id="no numbers"),
        pytest.param([MapOutput(APP, "0", 0, 9000, array("f", [math.inf] * 4))], "fits no stage", id="infinite"),
        pytest.param([MapOutput(APP, "0", 0, 9000, array("f", [3e38] * 4))], "fits no stage", id="more than there is"),
    ],
)
def test_map_outputs_that_fit_nothing_are_skipped(outputs: list[MapOutput], note: str) -> None:
    result = ready(windows={**WINDOWS, "127.0.0.2": [window(0, map_outputs=outputs)]})
    assert result.workload.shuffles == ()
    assert any(note in text for text in result.notes) == bool(note)


def test_batches_seen_in_part_do_not_lessen_a_shuffle() -> None:
    windows = {**WINDOWS, "127.0.0.2": [window(0, map_outputs=map_outputs((9,)))]}
    (shuffle,) = ready(windows=windows).workload.shuffles
    assert shuffle.matrix()[3].tolist() == pytest.approx([60, 2, 0, 0])


def test_outputs_that_were_never_reported_share_a_row() -> None:
    outputs = [it for it in map_outputs((7, 8)) if it.map_task in {7000, 7001, 8001, 8002}]
    windows = {**WINDOWS, "127.0.0.2": [window(0, map_outputs=outputs)]}
    batches = [with_tasks(it, lambda row: msgspec.structs.replace(row, bytes_out=9)) for it in BATCHES]
    (shuffle,) = ready(batches=batches, windows=windows).workload.shuffles
    of_two_batches = np.array([[0 + 150, 20], [100 + 100, 20], [50 + 200, 20], [50 + 150, 20]])
    np.testing.assert_allclose(shuffle.matrix()[:, :2], of_two_batches / 2 * 0.2)
    assert len(shuffle.volume) == 4, "three rows, and one for all others"


def test_the_bound_of_all_shuffles_counts_pairs_that_share_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_model, "MAX_MATRIX_ENTRIES", 30)  # of 16 of each query
    batches = [with_tasks(it, lambda row: msgspec.structs.replace(row, bytes_out=9)) for it in BATCHES]
    batches += [msgspec.structs.replace(it, query="q2") for it in batches]
    windows = {**WINDOWS, "127.0.0.2": [window(0, map_outputs=map_outputs((7,))[:1])]}
    result = ready(link=report([query(WHERE), query(WHERE, "q2")]), batches=batches, windows=windows)
    (shuffle,) = result.workload.shuffles
    assert (shuffle.downstream, shuffle.volume.shape) == (f"{QUERY}/0", (2, 4))
    assert any("shuffle too large for a dense block" in note for note in result.notes)


def test_a_floating_readers_shuffle_goes_to_where_it_ran() -> None:
    chained = []
    for item in BATCHES:
        tasks = [task(item.batch * 1000 + 500 + p, p, str(3 - p), run=0.2) for p in range(2)]
        sink = StageRun(spark_stage=2 * item.batch + 2, parents=[2 * item.batch + 1], stateful_stage=-1, tasks=tasks)
        chained.append(msgspec.structs.replace(item, stages=[*item.stages, sink]))
    outputs = [MapOutput(APP, "0", 1, 9100, [40, 60])]
    result = ready(batches=chained, windows={**WINDOWS, "127.0.0.2": [window(0, map_outputs=outputs)]})
    (shuffle,) = result.workload.shuffles
    assert (shuffle.upstream, shuffle.downstream) == (f"{QUERY}/0", f"{QUERY}/f1")
    assert shuffle.matrix()[0].tolist() == pytest.approx([0, 0, 12, 8])


def test_one_unfit_output_does_not_hide_the_others() -> None:
    unfit = [MapOutput(APP, "0", 0, 7000, [1] * 9), MapOutput(APP, "0", 0, 9000, array("f", [math.nan] * 4))]
    outputs = [output for output in map_outputs() if output.map_task not in (7000, 9000)]
    result = ready(windows={**WINDOWS, "127.0.0.2": [window(0, map_outputs=[*outputs, *unfit])]})
    (shuffle,) = result.workload.shuffles
    assert any("map output that fits no stage: 2" in note for note in result.notes)
    np.testing.assert_allclose(shuffle.matrix()[1], np.array([100, 10, 0, 0]) * 0.2)


def test_an_output_without_sizes_for_a_floating_reader_is_no_error() -> None:
    tasks = [task(9500 + part, part, str(part), run=0.2) for part in range(2)]
    sink = StageRun(spark_stage=99, parents=[BATCHES[-1].stages[-1].spark_stage], stateful_stage=-1, tasks=tasks)
    chained = [*BATCHES[:-1], msgspec.structs.replace(BATCHES[-1], stages=[*BATCHES[-1].stages, sink])]
    outputs = [MapOutput(APP, "0", 1, 9100 + part, []) for part in range(4)]
    assert (
        ready(batches=chained, windows={**WINDOWS, "127.0.0.2": [window(0, map_outputs=outputs)]}).workload.shuffles
        == ()
    )


@pytest.mark.parametrize("wrote", [0, 100])
def test_an_output_that_was_not_reported_speaks_neither_for_nor_against_its_executor(wrote: int) -> None:
    outputs = [output for number in (7, 8, 9) for output in outputs_of(number, (0, 1, 2))]
    windows = {**WINDOWS, "127.0.0.2": [window(0, map_outputs=outputs)]}
    batches = [with_tasks(it, lambda row: msgspec.structs.replace(row, bytes_out=wrote)) for it in BATCHES]
    (shuffle,) = ready(batches=batches, windows=windows).workload.shuffles
    assert shuffle.matrix()[0].sum() > 0
    rows = shuffle.matrix()
    assert rows[3].tolist() == pytest.approx((rows[0] if wrote else rows[3] * 0).tolist())


def test_tasks_of_executors_that_are_gone_are_no_first_tasks_of_the_newest() -> None:
    stage, executor = np.array([1] * 5 + [0] * 6), np.array([-1] * 5 + [1] * 3 + [0] * 3)
    count = len(stage)
    every, one = np.ones(count, dtype=np.bool_), np.ones(count)
    observed = Observations(stage, np.full(count, -1), executor, every, one, one, np.zeros(count, dtype=np.int64))
    left = query_model.skip_first_tasks(observed, np.array([0, 3]))
    assert left.executor.tolist() == [-1] * 5 + [0] * 3
