"""How the executors of a node that is drained with ``--remove`` leave, without a failed task and without a gap later.

::

    holds state ──> empty ──> cordoned ──> idle ──> released ──> gone
         └── the deadline has passed ──^

* *empty*: no partition ran on it last, or is on its way from it; the controller's moves bring that about.
* *cordoned*: Spark offers it no task any more, sources included. There is no way back, so it comes after *empty*.
* *idle*: every query that ran a batch when it was cordoned has passed a boundary; no reducer wants its map output.
* *released*: killed, after the application's target was set: Spark would count it as 0 otherwise and replace nobody.

Then the target is kept such that the cluster manager replaces who is lost and uses who is added, and does not start an
executor on the drained node again: as many as the application has elsewhere, and one for each live worker host that has
none. Where the manager chooses the drained node all the same, that executor is cordoned at once, so that the manager
has to choose another, and goes once the others are complete, or after a minute (then two, four, … up to an hour).
An application that has all the cores of its ``spark.cores.max`` then gets no other executor as long as the manager
prefers the drained node: that is said, and stopping Spark's worker there is the cure.

With ``spark.decommission.enabled`` a cordoned executor would end by itself in the middle of a batch. There nothing is
cordoned, and the release waits for a moment in which no query runs a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import structlog

from rechannel.migration.moves import Move
from rechannel.migration.spark.executor_control import ExecutorControl
from rechannel.migration.spark.gateway import LinkError
from rechannel.monitors.spark.task_table import TaskTable
from rechannel.wire.codes import MoveState
from rechannel.wire.messages import Drain, ExecutorInfo

_LOG = structlog.get_logger("rechannel.link")
_LOOK = 5.0  # seconds between two looks at the master's workers
_GRACE = 60.0  # seconds for which an executor that came back holds its place, so that others come up elsewhere
_LONGEST_GRACE = 3600.0
UNLIMITED = 2**31 - 1


@dataclass(frozen=True)
class ReleaseInputs:
    """What a turn looks at.

    ``holders``: executors that hold state. ``begun``: query -> last batch begun, of active queries; ``quiet``: those
    of them that run no batch now.
    """

    executors: Mapping[str, ExecutorInfo]
    drains: Mapping[str, Drain]
    holders: Collection[str]
    begun: Mapping[str, int]
    quiet: Collection[str]


def scene(
    table: TaskTable, queries: Collection[str], drains: Mapping[str, Drain], moves: Iterable[Move]
) -> ReleaseInputs:
    """Put together what a turn looks at. State that was steered away while its query is idle no longer counts."""
    left = {
        move.unit for move in moves if move.state is MoveState.RELEASED_IDLE and move.wanted.target in table.executors
    }
    holders = {
        executor
        for (query, stage), where in table.placement.items()
        if query in queries
        for partition, executor in enumerate(where)
        if (query, stage, partition) not in left
    }
    begun = {query: table.last_batch.get(query, -1) for query in queries}
    quiet = {query for query in queries if table.quiet(query) and not table.in_batch(query)}
    return ReleaseInputs(table.executors, drains, holders, begun, quiet)


@dataclass
class _Cordoned:
    since: float
    waits_for: dict[str, int]  # query -> the batch it was in


def target(here: Collection[str], base: int, alive: Collection[str] | None, avoid: Collection[str]) -> int:
    """Return how many executors the application is to have, those that wait for their release left out.

    ``here``: the host of each executor that stays; ``base``: how many it had elsewhere when the first one was released;
    ``alive``: hosts of live workers, None where that cannot be known; ``avoid``: hosts that are drained.
    """
    spare = 0 if alive is None else len(set(alive) - set(here) - set(avoid))
    return max(base, len(here)) + spare


class ExecutorReleaser:
    """Cordons and releases; one turn after the other, on the link's thread."""

    def __init__(self, executors: ExecutorControl, *, dynamic: bool, ends_by_itself: bool = False) -> None:
        self.released = 0
        self.problem = ""
        self._control = executors
        self._ends_by_itself = ends_by_itself  # a cordoned executor would
        self._dynamic = dynamic  # Spark itself removes idle executors, and sets the target
        self._cordoned: dict[str, _Cordoned] = {}
        self._killed: set[str] = set()  # released, and Spark has not told yet that they are gone
        self._avoid: frozenset[str] = frozenset()  # nodes whose executors are to leave
        self._before = 0  # executors in all before the first release
        self._base = -1  # executors elsewhere at the first release; -1 while the target is Spark's own
        self._wanted = 1  # executors elsewhere that there are to be now
        self._grace = _GRACE
        self._said = -1
        self._local_checkpoints = 0  # RDDs that live on executors alone
        self._next_look = 0.0

    @property
    def cordoned(self) -> list[str]:
        """Executors that get no task any more and are not gone yet."""
        return sorted(self._killed.union(self._cordoned))

    @property
    def under_way(self) -> bool:
        """Whether something is still to be done though no node is drained any more."""
        return bool(self._cordoned) or self._base >= 0

    def turn(self, scene: ReleaseInputs, now: float) -> None:
        """Take every step that is due. Errors of Spark are kept in ``problem``; the next turn is a new try."""
        self._killed &= scene.executors.keys()
        present = {name: info for name, info in scene.executors.items() if name not in self._killed}
        self._cordoned = {name: state for name, state in self._cordoned.items() if name in present}
        avoid = frozenset(node for node, drain in scene.drains.items() if drain.remove)
        elsewhere = {name for name, info in present.items() if info.host not in avoid and name not in self._cordoned}
        if avoid != self._avoid:
            self._avoid = avoid
            self._base = len(elsewhere) if self._base >= 0 else -1
            self._next_look = 0.0
        if not avoid and not self.under_way:
            self.problem = ""
            return
        try:
            self._cordon(present, elsewhere, scene, now)
            if now >= self._next_look:
                self._next_look = now + _LOOK
                self._keep_target(present, elsewhere)
                self._local_checkpoints = self._control.local_checkpoints() if self._cordoned else 0
            self._release(present, elsewhere, scene, now)
            back = {info.host for info in present.values() if _came_back(info, scene.drains)}
            self.problem = (
                f"executors were started on drained {', '.join(sorted(back))} again: stop Spark's worker there"
                if back and self._base >= 0
                else self._waiting(now)
            )
        except LinkError as error:
            self.problem = f"an executor could not be released: {error}"
            _LOG.warning("an executor could not be released", error=str(error))

    def _waiting(self, now: float) -> str:
        if self._cordoned and self._local_checkpoints:
            return (
                f"executors {', '.join(sorted(self._cordoned))} are kept: {self._local_checkpoints} RDDs of the "
                "application are checkpointed on executors alone (localCheckpoint) and would be lost; unpersist them, "
                "or drain with a deadline"
            )
        long = [name for name, state in self._cordoned.items() if now > state.since + _GRACE]
        if not self._ends_by_itself or not long:
            return ""
        return (
            f"executors {', '.join(sorted(long))} wait for a moment in which no query runs a batch: with "
            "spark.decommission.enabled they cannot be kept from tasks without ending in the middle of one"
        )

    def lift(self) -> None:
        """Leave the application's target to Spark again: nobody looks after it from now on."""
        if self._base >= 0 and not self._dynamic:
            self._base, self._wanted, self._said = -1, 1, self._unlimited
            self._control.limit_executors(self._unlimited)

    @property
    def _unlimited(self) -> int:
        # What a standalone application has unless it was told otherwise; elsewhere the target is a number to be met.
        return UNLIMITED if self._control.standalone else self._before

    def _cordon(
        self, present: Mapping[str, ExecutorInfo], elsewhere: Collection[str], scene: ReleaseInputs, now: float
    ) -> None:
        for name, info in sorted(present.items()):
            # Without another executor nothing could run any more, and there is no way back from a cordon.
            if info.host not in self._avoid or name in self._cordoned or not elsewhere:
                continue
            overdue = _overdue(scene.drains[info.host], now)
            if name in scene.holders and not overdue:
                continue
            if self._ends_by_itself or self._control.cordon(name):
                waits_for = {query: batch for query, batch in scene.begun.items() if query not in scene.quiet}
                self._cordoned[name] = _Cordoned(now, waits_for)
                _LOG.info("executor-cordoned", executor=name, node=info.host, overdue=overdue)

    def _release(
        self, present: Mapping[str, ExecutorInfo], elsewhere: Collection[str], scene: ReleaseInputs, now: float
    ) -> None:
        if self._dynamic or not elsewhere:
            return
        complete = len(elsewhere) >= self._wanted
        for name, state in sorted(self._cordoned.items()):
            if not complete and now < state.since + self._grace:
                continue
            state.waits_for = {
                query: batch
                for query, batch in state.waits_for.items()
                if query not in scene.quiet and scene.begun.get(query, batch + 1) <= batch
            }
            if self._ends_by_itself and scene.begun.keys() - set(scene.quiet):
                continue
            if self._local_checkpoints and not _overdue(scene.drains.get(present[name].host), now):
                continue
            remaining = len(present) - 1
            if not state.waits_for and self._control.release(name, remaining):
                self.released += 1
                if self._base < 0:
                    self._before = len(present)
                    self._control.lift_limit_without_link(self._unlimited)
                self._base, self._said = max(self._base, len(elsewhere)), remaining
                self._grace = _GRACE if complete else min(2 * self._grace, _LONGEST_GRACE)
                self._killed.add(name)
                del self._cordoned[name]
                _LOG.info("executor-released", executor=name, remaining=remaining)
                return  # one in a turn; the next looks anew

    def _keep_target(self, present: Mapping[str, ExecutorInfo], elsewhere: Collection[str]) -> None:
        if self._dynamic or self._base < 0:
            return
        if not self._avoid and not self._cordoned:
            self.lift()
            return
        self._base = max(self._base, len(elsewhere))
        hosts = [present[name].host for name in elsewhere]
        self._wanted = target(hosts, self._base, self._control.worker_hosts(), self._avoid)
        most = self._wanted + len(present) - len(elsewhere)
        if most != self._said:
            self._control.limit_executors(most)
            self._said = most
            _LOG.info("executors-limited", most=most)


def _overdue(drain: Drain | None, now: float) -> bool:
    return drain is not None and 0 < drain.deadline <= now


def _came_back(info: ExecutorInfo, drains: Mapping[str, Drain]) -> bool:
    drain = drains.get(info.host)
    return drain is not None and drain.remove and info.added > drain.since
