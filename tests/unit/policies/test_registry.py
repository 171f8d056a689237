from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rechannel.policies.model.arrays import ModelError
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.registry import POLICIES, PolicyLawError, propose
from unit.policies.random_clusters import cluster_of, placement_of, workload_of

SITUATION = (cluster_of(2), workload_of({"a": [1.0, 1.0]}), placement_of(a=[0, 1]))


def _register(monkeypatch: pytest.MonkeyPatch, answer: list[int]) -> None:
    def policy(_c: Cluster, _w: Workload, _p: Placement, _s: object) -> PolicyAnswer:
        return PolicyAnswer(Placement({"a": np.array(answer)}))

    monkeypatch.setitem(POLICIES, "bad", replace(POLICIES["adaptive"], name="bad", scheduler=policy))


def test_unknown_policy_lists_the_valid_names() -> None:
    with pytest.raises(ModelError, match=r"'adaptve'.*adaptive"):
        propose("adaptve", *SITUATION)


def test_unknown_parameter_is_named() -> None:
    with pytest.raises(ModelError, match=r"'max_mov'.*max_moves"):
        propose("adaptive", *SITUATION, {"max_mov": 3})


def test_worse_placement_is_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    _register(monkeypatch, [0, 0])
    proposal = propose("bad", *SITUATION)
    assert proposal.placement == SITUATION[2]
    assert proposal.moves == ()
    assert "no better" in proposal.notes[-1]


@pytest.mark.parametrize("answer", [[0, -1], [0, 7], [0]], ids=["unplaced", "unknown executor", "missing partition"])
def test_placement_that_breaks_a_law(monkeypatch: pytest.MonkeyPatch, answer: list[int]) -> None:
    _register(monkeypatch, answer)
    with pytest.raises(PolicyLawError, match="bad"):
        propose("bad", *SITUATION)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_entry_is_complete(name: str) -> None:
    entry = POLICIES[name]
    assert entry.name == name
    assert entry.summary.endswith(".")
    assert entry.parameters() == entry.parameters()
