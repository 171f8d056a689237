from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.daemon.model.cpu_attribution import PartitionKey, attribute_cpu, complete_span
from rechannel.wire.measurements import AgentWindow, BatchReport, StageRun, TaskRow
from rechannel.wire.messages import QueryState
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import APP, QUERY, task, window

HERE = "127.0.0.2"


def _task(partition: int, start: float, seconds: float, cpu: float = 0.0, executor: str = "0") -> TaskRow:
    row = task(partition, partition, executor, run=seconds)
    return msgspec.structs.replace(row, launch=NOW + start, finish=NOW + start + seconds, cpu=cpu)


def _batch(*tasks: TaskRow, stateful_stage: int = 0) -> BatchReport:
    run = StageRun(spark_stage=1, parents=[], stateful_stage=stateful_stage, tasks=list(tasks))
    return BatchReport(query=QUERY, batch=1, start=NOW, end=NOW + 10, input_rows=1, stages=[run])


def _window(start: float, jvm: float, python: float) -> AgentWindow:
    result = window(0, end=NOW + start + 5.0)
    usage = msgspec.structs.replace(result.executors[0], jvm_cpu=jvm, python_cpu=python)
    return msgspec.structs.replace(result, executors=[usage])


def _part(partition: int) -> PartitionKey:
    return PartitionKey(QUERY, 0, partition, "0")


def test_python_goes_to_the_tasks_that_waited_for_their_worker() -> None:
    # Partition 0 waits 3 of its 4 seconds for Python, partition 1 none of its second.
    result = attribute_cpu(APP, [_batch(_task(0, 0, 4, cpu=1), _task(1, 4, 1, cpu=1))], {HERE: [_window(0, 2.0, 3.0)]})
    assert result.parts[_part(0)].python == pytest.approx(3.0)
    assert result.parts[_part(1)].python == 0.0
    assert (result.parts[_part(0)].jvm, result.parts[_part(1)].jvm) == (1.0, 1.0)
    assert result.executors["0"].idle == 0.0


def test_where_workers_tell_their_time_it_goes_by_that() -> None:
    reporting = msgspec.structs.replace(_task(0, 0, 2), python=0.5)
    more = msgspec.structs.replace(_task(1, 2, 2), python=1.0)
    result = attribute_cpu(APP, [_batch(reporting, more, _task(2, 4, 1))], {HERE: [_window(0, 0.0, 3.0)]})
    assert [result.parts[_part(p)].python for p in range(3)] == pytest.approx([1.0, 2.0, 0.0])


def test_what_the_jvm_used_for_itself_is_shared_by_time_and_the_rest_stays_idle() -> None:
    result = attribute_cpu(
        APP, [_batch(_task(0, 0, 2, cpu=1), _task(1, 2, 1, cpu=0.5))], {HERE: [_window(0, 2.5, 0.0)]}
    )
    # One second beyond the tasks' own: three of five seconds were busy, shared two to one.
    assert result.parts[_part(0)].shared == pytest.approx(0.4)
    assert result.parts[_part(1)].shared == pytest.approx(0.2)
    assert result.executors["0"].idle == pytest.approx(0.4)


def test_without_a_task_all_is_idle() -> None:
    result = attribute_cpu(APP, [], {HERE: [_window(0, 1.0, 0.5)]})
    assert result.parts == {}
    assert result.executors["0"].idle == 1.5


def test_a_task_over_two_windows_is_in_both() -> None:
    windows = {HERE: [_window(0, 2.0, 0.0), _window(5, 1.0, 0.0)]}
    result = attribute_cpu(APP, [_batch(_task(0, 3, 4, cpu=2))], windows)
    assert result.parts[_part(0)].total == pytest.approx(1.0 + 1.0 * 2 / 5 + 1.0)
    assert result.executors["0"].seconds == 10.0


def test_tasks_without_state_are_one_part() -> None:
    result = attribute_cpu(
        APP, [_batch(_task(0, 0, 1), _task(1, 1, 1), stateful_stage=-1)], {HERE: [_window(0, 1.0, 0.0)]}
    )
    assert set(result.parts) == {PartitionKey(QUERY, -1, -1, "0")}


def test_windows_whose_tasks_are_not_told_yet_are_left_out() -> None:
    state = QueryState(query=QUERY, run="r", name="", batch=2, active=True, stages=[], batch_started=NOW + 5)
    batches = [_batch(_task(0, 0, 1))]
    assert complete_span([state], batches, NOW + 20) == (NOW, NOW + 5)
    assert complete_span([msgspec.structs.replace(state, batch_started=0.0)], batches, NOW + 20) == (NOW, NOW + 20)
    windows = {HERE: [_window(-5, 4.0, 0.0), _window(0, 1.0, 0.0), _window(5, 1.0, 0.0)]}
    assert attribute_cpu(APP, [], windows, span=(NOW, NOW + 5)).executors["0"].jvm == 1.0


def test_executors_of_other_applications_are_left_out() -> None:
    assert attribute_cpu("app-2", [], {HERE: [_window(0, 1.0, 1.0)]}).executors == {}


World = tuple[list[BatchReport], dict[str, list[AgentWindow]]]


@st.composite
def _worlds(draw: st.DrawFn) -> World:
    amount = st.floats(0, 8, allow_nan=False)
    tasks = [
        _task(draw(st.integers(0, 4)), draw(amount) * 2 - 2, draw(amount), draw(amount), draw(st.sampled_from("01")))
        for _ in range(draw(st.integers(0, 12)))
    ]
    windows = [_window(5.0 * number, draw(amount), draw(amount)) for number in range(draw(st.integers(0, 4)))]
    return [_batch(*tasks)], {HERE: windows}


@given(_worlds())
def test_the_parts_add_up_to_what_the_executor_used(world: World) -> None:
    result = attribute_cpu(APP, *world)
    for name, executor in result.executors.items():
        parts = [cpu for part, cpu in result.parts.items() if part.executor == name]
        assert all(min(cpu.jvm, cpu.python, cpu.shared) >= 0 for cpu in parts)
        assert executor.idle >= -1e-9
        total = sum(cpu.total for cpu in parts) + executor.idle
        assert total == pytest.approx(executor.jvm + executor.python)
