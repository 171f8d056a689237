"""Output of `status` as text and JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import pytest

from rechannel.daemon.cli import tables
from rechannel.daemon.cli.status import StatusFilter, to_json
from rechannel.daemon.model.readiness import driver_silence
from rechannel.daemon.view.status import ClusterStatus, ForecastStatus, LinkCounters, MoveStatus
from rechannel.daemon.view.status_builder import read_status
from rechannel.daemon.web import rendering
from rechannel.daemon.web.view_model import build_document
from rechannel.wire import keys
from rechannel.wire.exit_codes import CommandError
from rechannel.wire.printable import OBSERVE_MODE
from unit import sample_messages as samples
from unit.daemon.fake_store import NOW, FakeClock, FakeStore
from unit.daemon.fakes import APP, World, query, settings
from unit.daemon.view.test_publisher import Shown

UUID = "895c1599-0c4d-4e3f-9d0e-1f2a3b4c5d6e"


def read(world: World, **more: Any) -> ClusterStatus:
    return read_status(world.store, settings(), world.clock(), **more)  # type: ignore[arg-type]


def as_json(world: World, **more: Any) -> dict[str, Any]:
    return json.loads(to_json(read(world, **more)))


def text(world: World, capsys: pytest.CaptureFixture[str], *, verbose: bool = False, **more: Any) -> str:
    tables.print_status(read(world, **more), world.clock(), verbose=verbose)
    return capsys.readouterr().out


def lead(world: World) -> None:
    state = samples.controller_state(applications={APP: "ready: 12 partitions on 4 executors"})
    world._send(keys.STATE, "", state)


@pytest.mark.parametrize("agents", ["report", "have none of its executors any more"])
def test_status_names_a_silent_driver_and_no_agent(
    world: World, capsys: pytest.CaptureFixture[str], agents: str
) -> None:
    world.ready()
    before = [row["utilization"] for row in as_json(world)["applications"][0]["executors"]]
    world.clock.sleep(34)
    lead(world)  # what the controller makes of it is no better known
    if agents == "report":
        world.measure()
    (row,) = as_json(world)["applications"]
    assert (row["silent"], row["last_heard"], row["readiness"]["ready"]) == (True, 34.0, False)
    assert (row["readiness"]["code"], row["readiness"]["controller"]) == ("driver-silent", "")
    assert row["readiness"]["sentence"].startswith("driver last reported 34 s ago: ")
    assert [item["utilization"] for item in row["executors"]] == before, "figures are of then, and change no more"
    shown = text(world, capsys)
    assert "driver last reported 34 s ago" in shown
    assert "5.00 s, 34 s ago" in shown, "a batch's time is of then"
    assert "ready: " not in shown
    assert "agent" not in shown


def test_the_web_view_shows_a_silent_driver_as_status_does(
    leader: Any, store: FakeStore, clock: FakeClock, world: World
) -> None:
    shown = Shown(leader, store, clock)
    clock.sleep(34)
    view = shown.view()
    (application,) = view.applications
    (status,) = read_status(store, leader.settings, clock(), partitions=True).applications  # type: ignore[arg-type]
    assert application == status
    assert application.readiness.code == "driver-silent"
    (row,) = build_document(view, clock())["applications"]
    assert (row["silent"], row["last_heard"], row["readiness"]) == (True, 34.0, status.readiness.sentence)
    assert {executor["remarks"] for node in row["nodes"] for executor in node["executors"]} == {""}


def test_a_driver_is_silent_after_ten_seconds() -> None:
    assert driver_silence(NOW, NOW + 10) is None
    assert driver_silence(NOW, NOW + 11) is not None
    assert driver_silence(NOW + 5, NOW) is None, "its clock is ahead of ours"


def test_silent_agents_are_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.clock.sleep(40)
    world.report()
    assert text(world, capsys).count("no fresh agent figures") == 4


def test_the_counters_of_a_link_are_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.ready()
    (row,) = read(world).applications
    counted = dataclasses.replace(row, counters=LinkCounters(landed=12, abandoned=1, missed=1, drifted=3))
    tables.print_status(dataclasses.replace(read(world), applications=(counted,)), NOW)
    line = "12 moves landed, 1 abandoned; 1 batch missed; 3 partitions drifted; 0 failed tasks; 0 rejected messages"
    assert f"since the link attached: {line}" in capsys.readouterr().out


def test_shares_are_hidden_if_no_agent_reports(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.ready()
    status = read(world)
    (row,) = status.applications
    row = dataclasses.replace(row, shuffles_seen=1.0)
    tables.print_status(dataclasses.replace(status, applications=(row,)), NOW)
    assert "agents reported 100%" in capsys.readouterr().out
    row = dataclasses.replace(row, executors=tuple(dataclasses.replace(item, fresh=False) for item in row.executors))
    tables.print_status(dataclasses.replace(status, applications=(row,)), NOW)
    assert "agents reported" not in capsys.readouterr().out


def test_executors_show_the_cpu_of_their_node(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.ready()
    (row,) = as_json(world)["applications"]
    assert {item["node_cpu"] for item in row["executors"]} == {0.6}  # 3 s of one core in a window of 5 s
    shown = text(world, capsys)
    assert "node CPU" in shown
    assert shown.count(" 60%") == 4


def test_queries_stages_and_moves_use_the_same_name(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    unnamed = msgspec.structs.replace(query("0123", UUID), name="")
    world.queries = [query(world.placement), unnamed]
    world.moves = [samples.move_view(partition=3), samples.move_view(move="d.1", query=UUID, partition=3)]
    world.ready()
    (row,) = as_json(world)["applications"]
    assert [move["name"] for move in row["moves"]] == ["name-of-q1", ""]
    shown = text(world, capsys, partitions=True)
    for arguments in ("name-of-q1/0 #3", "query-895c1599/0 #3", "name-of-q1/0 aggregate", "query-895c1599/0 aggregate"):
        assert arguments in shown
    assert UUID not in shown


def test_a_query_shows_how_well_its_batches_are_explained(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.ready()
    (status,) = read(world).applications
    assert status.queries[0].residual == pytest.approx(0.0, abs=0.15)
    status = dataclasses.replace(status, queries=(dataclasses.replace(status.queries[0], residual=-0.234),))
    tables.print_status(dataclasses.replace(read(world), applications=(status,)), NOW)
    assert "-23%" in capsys.readouterr().out


def test_names_with_colons_are_shown_as_they_are(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.queries = [msgspec.structs.replace(query(world.placement), name="orders:key:v1")]
    world.ready()
    assert "orders:key:v1/0" in text(world, capsys)


def test_forecasts_are_shown_with_verbose_only(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.ready()
    assert as_json(world)["applications"][0]["forecasts"]
    assert "forecast" not in text(world, capsys)
    assert "forecast of name-of-q1/0" in text(world, capsys, verbose=True)


def test_observe_mode_is_explained_in_one_line(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    lead(world)
    lines = [line.rstrip() for line in text(world, capsys).splitlines()]
    assert lines[1] == OBSERVE_MODE
    assert len(OBSERVE_MODE) < 120
    assert 'reschedule.mode = "apply"' in OBSERVE_MODE


def test_a_silent_leader_is_shown_before_its_lease_ends(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    lead(world)
    assert "last reported" not in text(world, capsys)
    world.clock.sleep(8)
    assert "controller c/1 leads in epoch 1, last reported 8 s ago, mode observe" in text(world, capsys)


def test_the_web_view_names_stages_and_node_cpu_as_status_does(
    leader: Any, store: FakeStore, clock: FakeClock, world: World
) -> None:
    unnamed = msgspec.structs.replace(query("0123", UUID), name="")
    world.queries = [query(world.placement), unnamed]
    world.ready()
    page = rendering.fragment(build_document(Shown(leader, store, clock).view(), clock()))
    for arguments in ("name-of-q1/0</span>", "query-895c1599/0</span>", "node CPU 60%"):
        assert arguments in page
    assert UUID not in page


def test_the_json_document_has_the_documented_fields(world: World) -> None:
    world.ready()
    lead(world)
    document = as_json(world, partitions=True)
    assert list(document) == ["at", "controller", "applications", "drains", "scheduled_plans", "rejected_messages"]
    assert document["controller"]["applications"] == {APP: "ready: 12 partitions on 4 executors"}
    (row,) = document["applications"]
    fields = """application name spark_version last_heard silent readiness executors queries shuffles_seen streams
        hot_streams partitions moves forecasts settled_moves counters problems"""
    assert set(row) == set(fields.split())
    assert set(row["readiness"]) == {"ready", "code", "sentence", "transient", "ready_in", "controller"}
    assert set(row["counters"]) == {"landed", "missed", "abandoned", "drifted", "failed_tasks", "rejected_messages"}
    assert row["queries"][0]["stages"][0]["placement"]["0"] == [0, 1, 2, 3, 4, 5]


def test_a_filter_selects_and_refuses_unknown_names(world: World) -> None:
    world.queries = [query(world.placement), query("0123", "q2")]
    world.ready()
    status = read(world, partitions=True)
    (row,) = StatusFilter(APP, "name-of-q2", "127.0.0.3").apply(status).applications
    assert [item.query for item in row.queries] == ["q2"]
    assert [item.executor for item in row.executors] == ["1"]
    assert {(item.query, item.executor) for item in row.partitions} == {("q2", "1")}
    forecast = ForecastStatus("q1/0", "name-of-q1", 9, 300.0, 3, 0.1, 2, True, "s")
    move = MoveStatus(**msgspec.structs.asdict(samples.move_view(query="q1")))
    busy = dataclasses.replace(status.applications[0], moves=(move,), forecasts=(forecast,))
    for name, number in (("q1", 1), ("q2", 0)):
        (row,) = StatusFilter(query=name).apply(dataclasses.replace(status, applications=(busy,))).applications
        assert (len(row.moves), len(row.forecasts)) == (number, number)
    for only, sentence in (
        (StatusFilter("x"), f"unknown application x; known are {APP}"),
        (StatusFilter(query="x"), "unknown query x; known are name-of-q1, name-of-q2"),
        (StatusFilter(node="x"), "unknown node x; known are 127.0.0.2, 127.0.0.3"),
    ):
        with pytest.raises(CommandError, match=sentence):
            only.apply(status)
