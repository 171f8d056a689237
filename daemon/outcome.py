"""What became of a migration: its batches before, meanwhile and once settled, beside what was predicted.

Pure. Everything is read off the journal and the batch reports. A batch in which a partition landed is one of the
migration; those after a query's last landing are settled, and the median of the first few of them is held against the
batch that was predicted. Load times are those of single tasks: the first one on the target against the same
partition's usual one there.

A migration has *regressed* when a settled batch is longer than predicted by more than ``migration.rollback_limit`` and
longer than before by more than ``gate.min_gain`` (smaller differences are noise). It is *not judged* where the load or
the executors changed meanwhile, or where too few batches came.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

from rechannel.conf.settings import Settings
from rechannel.daemon.observed import busy_seconds
from rechannel.migration.moves import MoveState
from rechannel.wire.messages import BatchReport, Decision, MigrationOutcome, MoveTransition, TaskRow

KEPT, REGRESSED, NOT_JUDGED = "kept", "regressed", "not-judged"

_BEFORE = 20  # batches of before that count
_PATIENCE = 600.0  # seconds after the last landing in which enough batches, and the journal's lines, have to come
_LOAD_CHANGED = 0.2  # share by which a batch's rows may differ from those of before


def measure(
    decision: Decision,
    journal: Sequence[MoveTransition],
    batches: Sequence[BatchReport],
    executors: Collection[str],
    settings: Settings,
    now: float,
) -> MigrationOutcome | None:
    """Return the outcome of a migration that is over, None while its queries have not settled yet.

    ``journal`` may hold other decisions' lines too; ``executors`` are those of now.
    """
    lines = [line for line in journal if line.decision == decision.decision]
    landings = {line.move: line for line in lines if line.after == MoveState.DRAINED}
    abandoned = {line.move for line in lines if line.after == MoveState.ABANDONED} - landings.keys()
    queries = {query: _Query(query, decision, landings.values(), batches) for query in _landed(landings.values())}
    need = settings.migration.settle_batches
    last = max((line.at for line in landings.values()), default=decision.at)
    short = [known for known in queries.values() if len(known.settled) < need]
    untold = len(landings) + len(abandoned) < len(decision.moves)  # released while idle, or the line is on its way
    if (short or untold) and now - last < _PATIENCE:
        return None
    before = {name: known.usual for name, known in queries.items() if known.usual > 0}
    after = {name: known.after(need) for name, known in queries.items() if known.settled}
    peak = {name: known.peak for name, known in queries.items() if known.peak > 0}
    names = decision.names
    verdict, why = NOT_JUDGED, ""
    if not landings:
        why = "no partition landed"
    elif short:
        why = f"{names.get(short[0].name, short[0].name)} had {len(short[0].settled)} batches since, {need} are needed"
    elif {load.executor for load in decision.executors} != set(executors):
        why = "the executors changed meanwhile"
    elif changed := [known.name for known in queries.values() if known.load_changed(need)]:
        why = f"the rows of a batch of {names.get(changed[0], changed[0])} changed meanwhile"
    else:
        verdict, why = _judged(decision, before, after, settings)
    total = last - decision.at if landings else 0.0
    return MigrationOutcome(
        decision=decision.decision,
        at=now,
        landed=len(landings),
        abandoned=len(abandoned),
        total=total,
        batch_before=before,
        peak=peak,
        batch_after=after,
        loads=[load for known in queries.values() for load in known.loads(need)],
        verdict=verdict,
        sentence=_sentence(decision, verdict, why, len(landings), total, before, peak, after),
        predicted=decision.price,
    )


def _landed(landings: Collection[MoveTransition]) -> list[str]:
    return sorted({line.query for line in landings})


class _Query:
    """One query's batches, sorted out: before the order, those that partitions landed in, and settled."""

    def __init__(
        self, name: str, decision: Decision, landings: Collection[MoveTransition], batches: Sequence[BatchReport]
    ) -> None:
        own = sorted((batch for batch in batches if batch.query == name), key=lambda batch: batch.batch)
        self.name = name
        self._sizes = {move.move: move.bytes for move in decision.moves}
        self._landings = [line for line in landings if line.query == name]
        landed_in = {line.batch for line in self._landings}
        last = max(landed_in)
        self._before = [batch for batch in own if batch.end <= decision.at][-_BEFORE:]
        self._moving = [batch for batch in own if batch.batch in landed_in]
        self.settled = [batch for batch in own if batch.batch > last]
        known = decision.price.batch_before.get(name, 0.0) if decision.price else 0.0
        self.usual = _median(self._before) or known

    @property
    def peak(self) -> float:
        """Seconds of the longest batch in which a partition landed, 0 if none was seen."""
        return max((batch.end - batch.start for batch in self._moving), default=0.0)

    def after(self, need: int) -> float:
        """Median seconds of the first settled batches."""
        return _median(self.settled[:need])

    def load_changed(self, need: int) -> bool:
        """Whether a batch brings more or fewer rows than before."""
        if not self._before or not self.settled:
            return False
        rows = [statistics.median(batch.input_rows for batch in part) for part in (self._before, self.settled[:need])]
        return abs(rows[1] - rows[0]) > _LOAD_CHANGED * max(rows[0], 1)

    def loads(self, need: int) -> list[tuple[float, float]]:
        """Bytes and added seconds of each landing whose task was seen, and usual tasks on the target after it."""
        found = []
        tasks = {batch.batch: _tasks(batch) for batch in [*self._moving, *self.settled[:need]]}
        settled = [tasks[batch.batch] for batch in self.settled[:need]]
        for line in self._landings:
            first = tasks.get(line.batch, {}).get((line.stage, line.partition))
            usual = [
                busy_seconds(task)
                for batch in settled
                if (task := batch.get((line.stage, line.partition))) and task.executor == line.target
            ]
            if first is not None and first.executor == line.target and usual:
                added = busy_seconds(first) - statistics.median(usual)
                found.append((self._sizes.get(line.move, 0.0), added))
        return found


def _tasks(batch: BatchReport) -> dict[tuple[int, int], TaskRow]:
    rows = ((run.stateful, task) for run in batch.stages if run.stateful >= 0 for task in run.tasks)
    return {(stage, task.partition): task for stage, task in sorted(rows, key=lambda item: item[1].finish)}


def _median(batches: Sequence[BatchReport]) -> float:
    return float(statistics.median(batch.end - batch.start for batch in batches)) if batches else 0.0


def _judged(
    decision: Decision, before: Mapping[str, float], after: Mapping[str, float], settings: Settings
) -> tuple[str, str]:
    predicted = decision.price.batch_after if decision.price else {}
    limit, noise = settings.migration.rollback_limit, settings.gate.min_gain
    for query, settled in sorted(after.items()):
        wanted = predicted.get(query, before.get(query, settled))
        if settled > wanted * (1 + limit) and settled > before.get(query, settled) * (1 + noise):
            name = decision.names.get(query, query)
            return REGRESSED, f"batches of {name} last {settled / wanted - 1:.0%} longer than predicted"
    return KEPT, ""


def _sentence(
    decision: Decision,
    verdict: str,
    why: str,
    landed: int,
    total: float,
    before: Mapping[str, float],
    peak: Mapping[str, float],
    after: Mapping[str, float],
) -> str:
    price = decision.price
    said = f"{landed} of {len(decision.moves)} moves landed in {total:.1f} s"
    said += f" (predicted {price.total:.1f})" if price else ""
    for query in sorted(after):
        said += f"; batch of {decision.names.get(query, query)} {before.get(query, 0.0):.2f} → {after[query]:.2f} s"
        said += f" (predicted {price.batch_after[query]:.2f})" if price and query in price.batch_after else ""
        if query in peak:
            said += f", at most {peak[query]:.2f} s meanwhile"
            said += f" (predicted {price.peak[query]:.2f})" if price and query in price.peak else ""
    word = {KEPT: "", REGRESSED: "regressed: ", NOT_JUDGED: "not judged: "}[verdict]
    return f"{word}{why + '; ' if why else ''}{said}"
