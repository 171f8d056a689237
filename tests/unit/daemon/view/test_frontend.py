"""What is shown of a view when the lease ended after it was made."""

from __future__ import annotations

import pytest

from rechannel.daemon.control.controller import Controller
from rechannel.daemon.view.frontend import LatestView
from rechannel.daemon.view.model import ControllerView, Role, ViewSlot
from unit.daemon.fakes import FakeClock, FakeStore, controller


@pytest.fixture
def board(leader: Controller) -> ViewSlot:
    made = ViewSlot()
    made.put(ControllerView(1.0, "c", leader.lead.name, Role.LEADING, leader.lead.name, epoch=1, redis_up=True))
    return made


def test_a_leader_shows_its_view_as_it_is(leader: Controller, board: ViewSlot) -> None:
    assert LatestView(board, leader.lead).take() is board.take()


def test_whose_lease_ended_no_longer_says_that_it_leads(leader: Controller, board: ViewSlot, clock: FakeClock) -> None:
    current = LatestView(board, leader.lead)
    clock.sleep(60)
    view = current.take()
    assert (view.role, view.leader, view.epoch) == (Role.STARTING, "", 1)
    assert current.take() is view, "what is made of it is made once"


def test_who_was_deposed_says_who_leads(
    leader: Controller, board: ViewSlot, store: FakeStore, clock: FakeClock
) -> None:
    current = LatestView(board, leader.lead)
    clock.sleep(60)
    assert current.take().role is Role.STARTING
    other = controller(store, clock, name="b")
    other.observe()
    leader.observe()
    view = current.take()
    assert (view.role, view.leader) == (Role.STANDING_BY, other.lead.name)


def test_a_view_of_a_stand_by_stays_as_it_is(leader: Controller, store: FakeStore, clock: FakeClock) -> None:
    board = ViewSlot()
    board.put(ControllerView(1.0, "c", "x", Role.STANDING_BY, "y", redis_up=True))
    assert LatestView(board, leader.lead).take() is board.take()
