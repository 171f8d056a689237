"""Executors that ran few tasks of a kind of stage, whichever query the tasks were of."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rechannel.conf.settings import Settings
from rechannel.daemon.model.cold_start import cold_stages
from rechannel.daemon.model.snapshot import build_snapshot
from rechannel.migration.plan.cost import LoadRates
from rechannel.policies.analysis.cold_start import ColdStage
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import QUERY, executors, query, report, window
from unit.daemon.model.builders import batch, messages, with_tasks

OTHER = "q2"
EMPTY = "000012"  # executor 3 holds nothing of the first query
WORK = [1.0] * 6


def cold(others: str, first: int, *, python: bool = False) -> dict[str, ColdStage]:
    """Cold stages of two queries, the other one on ``others``; batches in memory begin with ``first``."""
    infos = [msgspec.structs.replace(info, added=0.0) for info in executors(4)]
    both = []
    for number in range(first, 20):
        other = msgspec.structs.replace(batch(number, others, WORK), query=OTHER)
        if python:
            other = with_tasks(other, lambda task: msgspec.structs.replace(task, python=0.1))
        both += [batch(number, EMPTY, WORK), other]
    link = msgspec.structs.replace(report([query(EMPTY), query(others, OTHER)]), executors=infos)
    received = messages(link, both, {f"127.0.0.{e + 2}": [window(e)] for e in range(4)})
    snapshot = build_snapshot(received, Settings(), NOW)
    assert snapshot is not None
    return cold_stages(snapshot, infos, LoadRates(0.0, 1e9))


def test_an_executor_that_ran_tasks_of_another_query_is_warm() -> None:
    assert f"{QUERY}/0" not in cold("333333", 0)


@pytest.mark.parametrize("case", [("000111", False), ("333333", True)], ids=["no tasks", "tasks of another kind"])
def test_an_executor_without_tasks_of_the_kind_is_cold(case: tuple[str, bool]) -> None:
    others, python = case
    ran = cold(others, 0, python=python)[f"{QUERY}/0"].ran
    assert np.flatnonzero(ran < 3).tolist() == [3]


def test_executors_of_unknown_history_are_warm() -> None:
    assert cold("000111", 8) == {}
