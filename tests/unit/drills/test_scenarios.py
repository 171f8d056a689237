"""The scenarios are complete, and leaders are told apart by their writes."""

from __future__ import annotations

from tests.drills.faults import FAULTS
from tests.drills.scenarios import IDLE, MIGRATING, SCENARIOS
from tests.drills.watch import Leaders


def test_every_fault_has_a_scenario_and_every_part_is_hit_at_both_times():
    assert {scenario.fault.name for scenario in SCENARIOS} == {fault.name for fault in FAULTS}
    for when in (IDLE, MIGRATING):
        assert {item.fault.part for item in SCENARIOS if item.when == when} == {fault.part for fault in FAULTS}


def test_names_are_said_once():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


def test_ci_runs_a_few():
    assert 3 <= sum(scenario.fast for scenario in SCENARIOS) <= 5


def write(sender: str, epoch: int, key: str = "controller:state") -> str:
    return f'SET rechannel:{{drills}}:{key} {{"schema":2,"sender":"{sender}","sequence":1,"epoch":{epoch}}} PX 60000'


def test_two_leaders_of_one_epoch_are_found():
    leaders = Leaders()
    for command in (write("alpha/1", 1), write("alpha/1", 1, "app:a:desired"), write("beta/2", 2)):
        leaders.take(command)
    assert leaders.problems() == []
    leaders.take(write("alpha/1", 2))
    assert leaders.problems() == ["epoch 2 had 2 leaders: alpha/1, beta/2"]


def test_what_an_old_leader_writes_late_is_counted():
    leaders = Leaders()
    for command in (write("alpha/1", 1), write("beta/2", 2), write("alpha/1", 1)):
        leaders.take(command)
    assert (leaders.late, leaders.problems()) == (1, [])


def test_what_others_write_is_nobodys_lead():
    leaders = Leaders()
    leaders.take(write("link@app", 5, "app:a:report"))
    leaders.take(f"GET {write('x', 1)}")
    assert leaders.senders == {}
