"""Every registered policy keeps the laws on random clusters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from rechannel.policies.registry import POLICIES, is_worse, propose
from unit.policies.laws import check_proposal
from unit.policies.random_clusters import Situation, situations


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=100, deadline=None)
@given(situation=situations())
def test_proposal_keeps_the_laws_with_executors_missing(name: str, situation: Situation) -> None:
    check_proposal(*situation, propose(name, *situation))


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=100, deadline=None)
@given(situation=situations(all_available=True))
def test_proposal_keeps_the_laws_with_all_executors(name: str, situation: Situation) -> None:
    check_proposal(*situation, propose(name, *situation))


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=50, deadline=None)
@given(situation=situations())
def test_asking_again_after_applying_never_gets_worse(name: str, situation: Situation) -> None:
    cluster, workload, current = situation
    first = propose(name, cluster, workload, current)
    second = propose(name, cluster, workload, first.placement)
    assert not is_worse(second.objective_after, first.objective_after)
