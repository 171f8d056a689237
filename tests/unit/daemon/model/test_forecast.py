from __future__ import annotations

import msgspec
import numpy as np

from rechannel.daemon.model import forecast as forecasting
from rechannel.daemon.model.snapshot import Snapshot, build_snapshot
from rechannel.wire.measurements import BatchReport, TaskRow
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import batch, query, report, settings
from unit.daemon.model.builders import messages, with_tasks

WHERE = ["0", "0", "1", "2"]
SECONDS = 10.0


def grown(number: int, by: int, start: float) -> BatchReport:
    """A batch of ten seconds, of which the first partition has so many rows more than the others."""

    def with_rows(task: TaskRow) -> TaskRow:
        return msgspec.structs.replace(task, rows_in=1000 + by * (task.partition == 0))

    item = with_tasks(batch(number, WHERE, {0: 2.0, 1: 1.0}), with_rows)
    return msgspec.structs.replace(item, start=start, end=start + SECONDS)


def history(count: int, grows: float) -> list[BatchReport]:
    """Batches of which the first partition's rows grow by as many each."""
    return [grown(number, int(grows * number), NOW - (count - number) * SECONDS) for number in range(count)]


def modeled(batches: list[BatchReport], *, forecast: bool = True) -> Snapshot:
    return build_snapshot(messages(report([query(WHERE)]), batches), settings(), NOW, forecast=forecast)


def test_a_partition_that_grows_is_decided_on_as_it_will_be():
    with_, without = modeled(history(63, 40.0)), modeled(history(63, 40.0), forecast=False)
    (key,) = with_.forecasts
    one = with_.forecasts[key]
    assert one.used == 1
    assert 1.0 < one.factors[0] < 2.0
    assert one.factors[1:].tolist() == [1.0, 1.0, 1.0]
    expected, measured = with_.workload.stage(key), without.workload.stage(key)
    assert np.allclose(expected.busy, measured.busy * one.factors)
    assert np.allclose(expected.rows, measured.rows * one.factors)
    assert expected.state_bytes.tolist() == measured.state_bytes.tolist()
    assert any(note.startswith("forecast: ") and "1 by trend" in note for note in with_.notes)
    assert not any("forecast" in note for note in without.notes), "shown in the status alone"
    assert without.forecasts[key].used == 1


def test_the_measured_batches_are_explained_without_the_forecast():
    with_, without = modeled(history(63, 40.0)), modeled(history(63, 40.0), forecast=False)
    assert with_.residuals == without.residuals
    assert with_.prediction.workload.placeable[0].busy[0] > without.prediction.workload.placeable[0].busy[0]


def test_how_long_a_query_was_silent_changes_no_factor():
    for grows in (40.0, -12.0):
        factors = []
        for silent in (0.0, 30.0, 60.0, 300.0):
            batches = [
                msgspec.structs.replace(one, start=one.start - silent, end=one.end - silent)
                for one in history(63, grows)
            ]
            (one,) = modeled(batches).forecasts.values()
            assert one.used == 1
            factors.append(one.factors[0])
        assert np.allclose(factors, factors[0])
        assert (factors[0] > 1.0) == (grows > 0)


def test_a_slot_of_one_batch_lasts_to_the_next_one_as_any_other():
    batches = [msgspec.structs.replace(one, end=one.start + 1.0) for one in history(20, 0.0)]
    slots = forecasting._slots(batches[0].query, batches, 1)
    assert np.allclose(forecasting._spans(slots), SECONDS)


def test_of_a_stage_that_was_run_again_the_task_that_finished_last_counts():
    (one,) = history(1, 0.0)
    later = with_tasks(one, lambda task: msgspec.structs.replace(task, rows_in=7000, finish=task.finish + 1.0))
    again = [
        msgspec.structs.replace(run, tasks=run.tasks + before.tasks)
        for run, before in zip(later.stages, one.stages, strict=True)
    ]
    assert forecasting._loads([[msgspec.structs.replace(one, stages=again)]], 0, 4)[0].tolist() == [7000.0] * 4


def test_steady_load_and_a_short_past_change_nothing():
    for batches in (history(63, 0.0), history(9, 40.0)):
        result = modeled(batches)
        (one,) = result.forecasts.values()
        assert one.used == 0
        assert "the last value is used" in one.sentence()
        without = modeled(batches, forecast=False).workload.stage(one.key)
        assert result.workload.stage(one.key).busy.tolist() == without.busy.tolist()
        assert not any("forecast" in note for note in result.notes)


def test_the_last_slot_is_what_the_model_holds_without_a_forecast():
    batches = history(40, 40.0)
    result = modeled(batches, forecast=False)
    (key,) = result.forecasts
    slots = forecasting._slots(batches[0].query, batches, settings().reschedule.batches)
    assert {len(slot) for slot in slots} == {settings().reschedule.batches}
    rate = forecasting._loads(slots, 0, 4)[-1] / forecasting._spans(slots)[-1]
    stage = result.workload.stage(key)
    assert np.allclose(rate, stage.rows * stage.batches_per_second)


def test_the_same_batches_give_the_same_forecast_to_whoever_leads_next():
    batches = history(63, 40.0)
    once, again = modeled(batches), modeled(list(reversed(batches)))
    assert [one.sentence() for one in once.forecasts.values()] == [one.sentence() for one in again.forecasts.values()]


def test_busy_seconds_stand_in_where_no_rows_are_told():
    silent = [with_tasks(one, lambda task: msgspec.structs.replace(task, rows_in=0)) for one in history(3, 0.0)]
    assert forecasting._loads([silent], 0, 4)[0][:2].tolist() == [6.0, 3.0]
