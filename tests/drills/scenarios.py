"""The scenarios: each fault, while nothing moves and during a running migration; and their run on a world.

What must hold in every one of them stands in ``docs/reliability.md``; within `WITHIN` seconds all parts work together
again, as `World.lacking` recognizes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rechannel.wire.codes import MoveReason
from tests.drills import audit
from tests.drills.faults import FAULTS, Fault
from tests.drills.results import Result
from tests.drills.world import PATIENCE, World

IDLE, MIGRATING = "while nothing moves", "during a migration"
WITHIN = 240.0  # seconds; on a machine that is not overloaded it takes a small part of that
_LANDED_BEFORE = 2  # moves of the migration that have landed when the fault strikes
_PROGRESS_AFTER = 10.0  # faults that last longer must see commits meanwhile


@dataclass(frozen=True)
class Scenario:
    """A fault at a time. ``fast``: whether it is part of what CI runs."""

    fault: Fault
    when: str
    fast: bool = False

    @property
    def name(self) -> str:
        """The scenario in an operator's words."""
        return f"{self.fault.name} {self.when}"


_FAST = {
    ("the leading controller is killed", MIGRATING),
    ("Redis is emptied", MIGRATING),
    ("the executor that takes partitions is killed", MIGRATING),
}
SCENARIOS = tuple(
    Scenario(fault, when, (fault.name, when) in _FAST)
    for fault in FAULTS
    for when in (IDLE, MIGRATING)
    if (fault.idle if when == IDLE else fault.moving)
)


def until_well(world: World, what: str) -> None:
    """Wait until all parts work together and nothing moves."""
    since, batches = time.time(), world.last_batches()
    world.wait(what, lambda: world.lacking(since, batches) or world.moving())


def run(world: World, scenario: Scenario, say: Callable[[str], None]) -> Result:
    """Run one scenario on a world that is up; raises `DrillError` where something does not come about in time."""
    fault = scenario.fault
    if fault.prepare is not None:
        fault.prepare(world)
    until_well(world, "all is well before the fault")
    failed_before, attached = world.failed_tasks(), _attached(world)
    decision, moves = "", 0
    if scenario.when == MIGRATING:
        decision, moves = world.start_migration()
        say(f"migration {decision} of {moves} moves runs")
        world.wait("some moves have landed", lambda: _too_few(world, decision, moves), every=0.2)
    struck, batches = time.time(), world.last_batches()
    mend = fault.strike(world)
    hit = time.time()  # what was said before it was hit is no sign of recovery
    say(f"struck: {fault.name}")
    time.sleep(fault.lasts)
    meanwhile = world.last_batches()
    mended = time.time()
    mend()
    say(f"mended after {mended - struck:.0f} s")
    if fault.healed_from == "strike":
        since, after, last_batches = struck, hit, batches
    else:
        since, after, last_batches = mended, time.time(), meanwhile
    world.wait("Rechannel recovers", lambda: world.lacking(after, last_batches), patience=max(WITHIN, PATIENCE))
    recovered = time.time()
    world.wait("no move is left under way", world.moving)
    settled = time.time()
    say(f"recovered in {recovered - since:.1f} s, no move under way after {settled - since:.1f} s")
    journal = world.journal()
    outcome = audit.migrated(journal, decision, moves)
    checked = audit.audit(world.app_directory)
    same_run = _attached(world) == attached
    problems = list(checked.wrong) + world.watch.leaders.problems() + audit.taken_twice(journal)
    problems += _progress_problems(fault, batches, meanwhile)
    problems += _migration_problems(outcome, fault)
    if recovered - since > WITHIN:
        problems.append(f"recovery took {recovered - since:.0f} s; {WITHIN:g} s are promised")
    times = audit.commit_times(world.app_directory)
    return Result(
        scenario=scenario.name,
        fault=fault.name,
        when=scenario.when,
        provider=world.provider,
        held=not problems and checked.exact,
        problems=problems,
        lost=checked.lost,
        doubled=checked.doubled,
        batches=checked.batches,
        failed_attempts=world.failed_tasks() - (failed_before if same_run else 0),
        recovered=round(recovered - since, 1),
        counted_from=fault.healed_from,
        settled=round(settled - since, 1) if decision else None,
        gap=round(max(audit.longest_gap(own, struck, recovered) for own in times.values()), 1),
        usual_gap=round(max(audit.usual_gap(own, struck) for own in times.values()), 1),
        migration=outcome.sentence() if decision else "",
        landed=outcome.landed,
        abandoned=dict(outcome.reasons),
        late_writes=world.watch.leaders.late,
    )


def _attached(world: World) -> float:
    report = world.report()
    return report.body.attached if report is not None else 0.0


def _too_few(world: World, decision: str, moves: int) -> str:
    so_far = audit.migrated(world.journal(), decision, moves)
    return so_far.sentence() if so_far.landed < _LANDED_BEFORE else ""


def _progress_problems(fault: Fault, before: dict[str, int], after: dict[str, int]) -> list[str]:
    if fault.stalls or fault.lasts < _PROGRESS_AFTER:
        return []
    return [f"{name} committed nothing while {fault.name}" for name in before if after[name] <= before[name]]


def _migration_problems(outcome: audit.Migrated, fault: Fault) -> list[str]:
    typed = {str(reason) for reason in MoveReason}
    problems = [f"moves abandoned with no typed reason: {reason}" for reason in outcome.reasons if reason not in typed]
    # The moves of a driver that was killed end with its run; the next run has other ones.
    if outcome.unsettled and not fault.ends_run:
        problems.append(f"moves not settled: {outcome.unsettled}")
    if outcome.moves and not fault.ends_run and outcome.landed + outcome.abandoned < outcome.moves:
        problems.append(f"moves that nobody accounts for: {outcome.sentence()}")
    return problems
