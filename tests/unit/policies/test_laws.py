"""Every registered policy keeps the laws on random clusters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from rechannel.policies.model.arrays import ScaleOutError
from rechannel.policies.registry import POLICIES, Proposal, is_worse, propose
from unit.policies.laws import check_proposal
from unit.policies.random_clusters import Situation, situations

MAY_ASK_FOR_MORE = {"fair-redistribution"}  # says so where nobody is below the limit, instead of shuffling the surplus


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=40, deadline=None)
@given(situation=situations())
def test_proposal_keeps_the_laws_with_executors_missing(name: str, situation: Situation) -> None:
    proposal = _proposed(name, situation)
    if proposal is not None:
        check_proposal(*situation, proposal)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=40, deadline=None)
@given(situation=situations(all_available=True))
def test_proposal_keeps_the_laws_with_all_executors(name: str, situation: Situation) -> None:
    proposal = _proposed(name, situation)
    if proposal is not None:
        check_proposal(*situation, proposal)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=25, deadline=None)
@given(situation=situations())
def test_asking_again_after_applying_never_gets_worse(name: str, situation: Situation) -> None:
    cluster, workload, _ = situation
    first = _proposed(name, situation)
    if first is None:
        return
    second = _proposed(name, (cluster, workload, first.placement))
    assert second is None or not is_worse(second.objective_after, first.objective_after)


def _proposed(name: str, situation: Situation) -> Proposal | None:
    try:
        return propose(name, *situation)
    except ScaleOutError:
        assert name in MAY_ASK_FOR_MORE
        return None
