"""Operator who knows every load and orders the moves that serve it best as soon as an event strikes."""

from __future__ import annotations

import numpy as np

from benchmarks.live.service.cases import OVERHEAD
from benchmarks.live.service.session import ServiceSession
from benchmarks.live.service.truth import assign_staying
from benchmarks.report.results import progress
from benchmarks.unattended.figures import best_load, goal_of
from benchmarks.unattended.script import DRAINED, Phase, Script
from testbed.stack import Place, StackError

SLACK = 1.02  # times the least load of the busiest executor: fewer moves are worth so much
_SOLVING = 3.0  # seconds for the fewest moves
_PATIENCE = 60.0  # seconds until all moves of an event have landed


class Oracle:
    """Orders of one run. They are refused like anybody's while an application is not known well enough."""

    def __init__(self, script: Script) -> None:
        self._script = script
        # Known before the cluster starts, since solving takes seconds.
        self._least = {phase.batch: best_load(script, phase, OVERHEAD) for phase in script.phases}

    def react(self, session: ServiceSession, phase: Phase) -> None:
        """Order moves until the placement is the best one for a phase; a drain is left to the policy."""

        def is_best() -> bool:
            targets = self._targets(session, phase)
            if targets and session.at_rest():
                try:
                    session.order_moves(targets, "oracle")
                except StackError as error:
                    progress(f"{phase.kind}: {str(error).splitlines()[0]}")
            return targets == {}

        if phase.kind != DRAINED:
            try:
                session.wait("the best placement", is_best, _PATIENCE, every=0.5)
            except StackError as error:
                progress(f"{phase.kind}: {str(error).splitlines()[0]}")

    def _targets(self, session: ServiceSession, phase: Phase) -> dict[Place, str] | None:
        """Return the executor of each partition to move; None while a placement is not complete."""
        homes = session.homes()
        executors = {number: executor for executor, number in session.executor_numbers().items()}
        if not homes or len(executors) != len(phase.speeds):
            return None
        goal = goal_of(self._script.case_at(phase), OVERHEAD, homes, len(phase.speeds))
        capacity = SLACK * self._least[phase.batch] * np.array(phase.speeds)
        if np.all(np.array(goal.loads()) <= capacity):
            return {}
        best, _ = assign_staying(goal.seconds, goal.home, capacity, _SOLVING)
        if best is None:
            return None
        ids = {name: query for query, name in session.names().items()}
        places = [
            (ids[name], 0, number) for name, own in zip(goal.names, homes, strict=True) for number in range(len(own))
        ]
        changes = zip(places, goal.home.tolist(), best.tolist(), strict=True)
        return {place: executors[target] for place, source, target in changes if source != target}
