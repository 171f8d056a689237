"""Output of `top`, and its status."""

from __future__ import annotations

import dataclasses
import io

import msgspec
import pytest
from rich.console import Console, Group

from rechannel.daemon.cli import tables, top
from rechannel.daemon.view.status import ApplicationStatus, ClusterStatus
from rechannel.daemon.view.status_builder import read_status
from rechannel.wire import keys
from rechannel.wire.measurements import MapOutput
from rechannel.wire.printable import NOBODY_REPORTS
from unit import sample_messages as samples
from unit.daemon.fake_store import NOW, FakeClock
from unit.daemon.fakes import APP, QUERY, World, query, settings, window


def _read(world: World) -> ClusterStatus:
    return read_status(world.store, settings(), NOW, partitions=True)  # type: ignore[arg-type]


def _application(world: World) -> ApplicationStatus:
    (status,) = _read(world).applications
    return status


def _drawn(status: ApplicationStatus) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(Group(*top.application(status)))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_partitions_have_their_cpu_state_and_snapshot_lag(world: World) -> None:
    state = query(world.placement)
    stage = msgspec.structs.replace(state.stages[0], snapshot_lag=[3] * 11 + [-1])
    world.queries = [msgspec.structs.replace(state, stages=[stage])]
    world.ready()
    partitions = _application(world).partitions
    first, last = partitions[0], partitions[11]
    assert (first.executor, last.executor) == ("0", "3")
    assert (first.state_rows, first.state_bytes, first.commit_seconds) == (50, 1000, 0.01)
    assert first.rows_per_second == pytest.approx(10)
    assert (first.snapshot_lag, last.snapshot_lag) == (3, None)
    cpu = [item.cpu or 0.0 for item in partitions]
    assert cpu[0] > 0
    assert sum(cpu) <= 4 * 3.0 / 5.0 + 1e-9, "no more than the agents measured"


def test_windows_of_a_running_batch_are_ignored(world: World) -> None:
    world.queries = [msgspec.structs.replace(query(world.placement), batch_started=NOW - 6)]
    world.ready()
    assert all(item.cpu is None for item in _application(world).partitions)


def test_top_draws_executors_partitions_and_moves(world: World) -> None:
    world.moves = [samples.move_view()]
    world.ready()
    text = _drawn(_application(world))
    for sentence in ("127.0.0.5", "utilization", "busy s/batch", f"name-of-{QUERY}", "0 → 1", "steered"):
        assert sentence in text
    assert text.count("█") > 12


def test_a_slow_executor_is_named(world: World) -> None:
    world.ready()
    status = _application(world)
    assert [item.speed for item in status.executors] == [1.0] * 4
    remark = "slow: its tasks take 2.0 times what others' take"
    slow = dataclasses.replace(status.executors[2], remark=remark, speed=0.5)
    assert remark in _drawn(dataclasses.replace(status, executors=(slow,)))


def test_an_application_without_measurements_is_drawn(world: World) -> None:
    world.report()
    assert "?" in _drawn(_application(world))


def test_an_application_that_leaves_is_named_where_others_report(
    world: World, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    monkeypatch.setattr(top, "Store", lambda *_: world.store)
    monkeypatch.setattr(top.time, "time", clock)
    world.ready()
    screen = top.Screen(settings(), APP)
    screen.draw()
    clock.sleep(100)
    console = Console(file=io.StringIO(), width=200)
    console.print(screen.draw())
    assert NOBODY_REPORTS in console.file.getvalue()  # type: ignore[attr-defined]
    World(world.store, clock, "app-2").ready()
    console.print(screen.draw())
    assert f"{APP} does not report any more" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_share_of_seen_shuffles_is_shown(world: World) -> None:
    world.ready()
    assert _application(world).shuffles_seen is None, "no task wrote anything"
    newest = world.store.last(keys.BATCHES, APP, 1)[0].body
    sent = [msgspec.structs.replace(item, bytes_out=100) for item in newest.stages[0].tasks]
    assert sent
    first = msgspec.structs.replace(newest.stages[0], tasks=sent)
    again = msgspec.structs.replace(
        newest, batch=newest.batch + 1, stages=[first, newest.stages[1]], start=NOW, end=NOW + 1
    )
    world._send(keys.BATCHES, APP, again)
    outputs = [MapOutput(APP, "0", 1, sent[0].task, [10] * 12), MapOutput(APP, "1", 1, sent[1].task, [10] * 12)]
    world._send(keys.WINDOWS, "127.0.0.2", window(0, end=NOW + 1, map_outputs=outputs))
    status = _application(world)
    assert status.shuffles_seen == 0.5
    assert "50% of shuffle outputs seen" in _drawn(status)
    assert sum(status.streams.values()) == 48, "those that were not reported count as the mean of the others"
    assert list(status.streams) == ["high", "mid", "low"]
    line = ", ".join(f"{number} {kind}" for kind, number in status.streams.items())
    assert f"streams: {line}" in _drawn(status)


def test_status_shows_the_number_of_streams_in_each_class(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.ready()
    status = _read(world)
    (row,) = status.applications
    assert row.streams == {}, "nobody told of streams"
    tables.print_status(status, NOW)
    assert "streams:" not in capsys.readouterr().out
    row = dataclasses.replace(row, streams={"high": 12, "mid": 40, "low": 8})
    tables.print_status(dataclasses.replace(status, applications=(row,)), NOW)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "streams: 12 high, 40 mid, 8 low" in lines
    (first,) = [line for line in lines if line.startswith("127.0.0.2 ")]
    assert f"{row.executors[0].utilization:.0%}" in first
