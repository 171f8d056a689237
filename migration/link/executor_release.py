"""Release of the executors of a node that is drained with ``--remove``.

No task fails, and no executor is missing afterwards::

    holds state ──> empty ──> cordoned ──> idle ──> released ──> gone
         └── the deadline has passed ──^

* *empty*: no partition ran on it last, or is on its way from it; the controller's moves bring that about. Queries of
  all sessions count. One that started before the attach may have state on any executor, until a whole batch of it
  was seen, or it has run no batch for a minute: its next one then loads its state elsewhere.
* *cordoned*: Spark offers it no task any more, sources included. There is no way back, so it comes after *empty*.
* *idle*: every query that ran a batch when it was cordoned has passed a boundary, so no reducer needs its map output;
  and, before the deadline, no RDD of the application lives on executors alone (``localCheckpoint``). A query that
  seemed to run no batch is looked at again two seconds later, since the start of a batch is read some moments late.
* *released*: killed, after the application's target was set: an unset target counts as 0, and Spark would replace none.

Then the target is kept such that the cluster manager replaces executors that are lost, uses nodes that are added, and
does not start an executor on the drained node again: as many as the application has elsewhere, and one for each live
worker host that has none. Where the manager chooses the drained node all the same, that executor is cordoned at once,
so that the manager has to choose another, and is released once the others are complete, or after a minute (then two,
four, … up to an hour). An application that has all the cores of its ``spark.cores.max`` then gets no other executor as
long as the manager prefers the drained node: ``problem`` says so, and stopping Spark's worker there is the cure.

With ``spark.decommission.enabled`` a cordoned executor would end by itself in the middle of a batch. There nothing is
cordoned, and the release waits for a moment in which no query runs a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import structlog

from rechannel.migration.moves import TrackedMove, units_steered_away
from rechannel.migration.spark.executor_control import ExecutorControl
from rechannel.migration.spark.gateway import LinkError
from rechannel.monitors.spark.task_table import TaskTable
from rechannel.wire.messages import DrainedNode, ExecutorInfo

_LOG = structlog.get_logger("rechannel.link")
_TARGET_EVERY = 5.0  # seconds between two readings of the master's workers
_RELEASE_EVERY = 5.0  # seconds to the next try after one that Spark refused, or that would lose RDDs
_GRACE = 60.0  # seconds for which an executor that came back holds its place, so that others come up elsewhere
_LONGEST_GRACE = 3600.0
_EVENT_DELAY = 2.0  # seconds after which the start of a batch was read, whose tasks may have run before the cordon
_LONG_IDLE = 60.0  # seconds without a batch after which a query that was never seen in one is not waited for
UNLIMITED = 2**31 - 1


@dataclass(frozen=True)
class ReleaseInputs:
    """Input of `ExecutorReleaser.advance`."""

    executors: Mapping[str, ExecutorInfo]
    drains: Mapping[str, DrainedNode]  # by node
    holders: Collection[str]  # executors that hold state
    batches: Mapping[str, int]  # query -> last batch begun, of active queries
    between_batches: Collection[str]  # those of them that run no batch now
    overdue: Collection[str]  # drained nodes whose deadline has passed
    unseen: Collection[str]  # active queries that may have state on any executor
    unmovable: Collection[str]  # executors with state of another session, which nobody moves


def collect_inputs(
    table: TaskTable,
    queries: Collection[str],
    drains: Mapping[str, DrainedNode],
    moves: Iterable[TrackedMove],
    now: float,
    others: Collection[str] = (),
) -> ReleaseInputs:
    """Return the input of a release; state steered away from an idle query no longer counts.

    ``queries``: the running ones of the attached session by Spark; ``others``: those of other sessions.
    """
    steered_away = units_steered_away(moves, table.executors)
    holders = {
        executor
        for (query, stage), executors in table.placement.items()
        for partition, executor in enumerate(executors)
        if (query, stage, partition) not in steered_away
    }
    unmovable = {
        executor for (query, _), executors in table.placement.items() if query not in queries for executor in executors
    }
    active = {*queries, *others, *table.runs.values()}
    # A batch of before the attach may have any number: until its end, none that is later has begun.
    batches = {query: -1 if table.is_quiet(query) is None else table.last_batch.get(query, -1) for query in active}
    between_batches = {query for query in active if table.is_quiet(query) and not table.in_batch(query)}
    overdue = {node for node, drain in drains.items() if 0 < drain.deadline <= now}
    unseen = active - table.surveyed
    return ReleaseInputs(table.executors, drains, holders, batches, between_batches, overdue, unseen, unmovable)


@dataclass
class _Cordon:
    since: float
    waits_for: dict[str, int]  # query -> the batch it was in
    idle: Collection[str]  # queries that were in none, as far as events were read


def executor_target(
    hosts: Collection[str], base: int, workers: Collection[str] | None, drained: Collection[str]
) -> int:
    """Return the number of executors to have, without those that wait for their release.

    ``hosts``: that of each executor that stays; ``base``: executors elsewhere at the first release; ``workers``: hosts
    of live workers, None where they cannot be known.
    """
    spare = 0 if workers is None else len(set(workers) - set(hosts) - set(drained))
    return max(base, len(hosts)) + spare


class ExecutorReleaser:
    """Cordons and releases executors, a little in each cycle of the link's thread."""

    def __init__(self, control: ExecutorControl, *, dynamic: bool, cordon_ends_executor: bool = False) -> None:
        self.problem = ""
        self._control = control
        self._cordon_ends_executor = cordon_ends_executor  # in the middle of a batch (spark.decommission.enabled)
        self._dynamic = dynamic  # Spark removes idle executors and sets the target (spark.dynamicAllocation.enabled)
        self._cordons: dict[str, _Cordon] = {}
        self._released: set[str] = set()  # released; Spark has not yet reported that they are gone
        self._drained: frozenset[str] = frozenset()  # nodes whose executors are to leave
        self._limit_before = UNLIMITED  # the application's limit of executors before the first release
        self._base = -1  # executors elsewhere at the first release; -1 while the target is Spark's own
        self._target = 1  # executors that there are to be elsewhere now
        self._grace = _GRACE
        self._idle_since: dict[str, float] = {}  # unseen query -> since when it has run no batch
        self._local_checkpoints = 0  # RDDs that live on executors alone and keep those that are cordoned
        self._next_release = 0.0
        self._next_target = 0.0

    @property
    def releasing(self) -> list[str]:
        """Executors that get no task any more and are not gone yet."""
        return sorted(self._released.union(self._cordons))

    @property
    def active(self) -> bool:
        """Whether something is still to be done though no node is drained any more."""
        return bool(self._cordons) or self._base >= 0

    def advance(self, inputs: ReleaseInputs, now: float) -> None:
        """Do everything that is due; ``problem`` keeps an error, and the next call tries again.

        ``now``: seconds of a steady clock.
        """
        self._released &= inputs.executors.keys()
        present = {name: info for name, info in inputs.executors.items() if name not in self._released}
        self._cordons = {name: cordon for name, cordon in self._cordons.items() if name in present}
        if not self._cordons:
            self._local_checkpoints = 0
        drained = frozenset(node for node, drain in inputs.drains.items() if drain.remove)
        elsewhere = {
            name for name, info in present.items() if info.node_name not in drained and name not in self._cordons
        }
        if drained != self._drained:
            self._drained = drained
            self._base = len(elsewhere) if self._base >= 0 else -1
            self._next_target = 0.0
        if not drained and not self.active:
            self.problem = ""
            return
        try:
            self._cordon_empty(present, elsewhere, inputs, now)
            if now >= self._next_target:
                self._next_target = now + _TARGET_EVERY
                self._adjust_target(present, elsewhere)
            self._release_idle(present, elsewhere, inputs, now)
            staying = {name for name in inputs.unmovable if name in present and name not in elsewhere}
            restarted = {info.node_name for info in present.values() if _was_restarted(info, inputs.drains)}
            self.problem = (
                f"executors were started on drained {', '.join(sorted(restarted))} again: stop Spark's worker there"
                if restarted and self._base >= 0
                else self._waiting_problem(staying.difference(self._cordons), now)
            )
        except LinkError as error:
            self.problem = f"an executor could not be released: {error}"
            _LOG.warning("an executor could not be released", error=str(error))

    def _waiting_problem(self, unmovable: Collection[str], now: float) -> str:
        if unmovable:
            return (
                f"executors {', '.join(sorted(unmovable))} are kept: they hold state of queries of another Spark "
                "session, which are not moved; stop these queries, or drain with a deadline"
            )
        if self._cordons and self._local_checkpoints:
            return (
                f"executors {', '.join(sorted(self._cordons))} are kept: {self._local_checkpoints} RDDs of the "
                "application are checkpointed on executors alone (localCheckpoint) and would be lost; unpersist them, "
                "or drain with a deadline"
            )
        late = [name for name, cordon in self._cordons.items() if now > cordon.since + _GRACE]
        if not self._cordon_ends_executor or not late:
            return ""
        return (
            f"executors {', '.join(sorted(late))} wait for a moment in which no query runs a batch: with "
            "spark.decommission.enabled they cannot be kept from tasks without ending in the middle of one"
        )

    def restore_target(self) -> None:
        """Leave the application's target to Spark again: the link no longer looks after it."""
        if self._base >= 0:
            self._control.lift_limit(self._limit_before)
            self._base, self._target = -1, 1

    def _cordon_empty(
        self, present: Mapping[str, ExecutorInfo], elsewhere: Collection[str], inputs: ReleaseInputs, now: float
    ) -> None:
        is_state_unseen = self._is_state_unseen(inputs, now)
        for name, info in sorted(present.items()):
            # Without another executor nothing could run any more, and there is no way back from a cordon.
            if info.node_name not in self._drained or name in self._cordons or not elsewhere:
                continue
            overdue = info.node_name in inputs.overdue
            if (is_state_unseen or name in inputs.holders) and not overdue:
                continue
            # Spark refuses to cordon twice: an earlier link did, or this one and had no answer.
            if self._cordon_ends_executor or self._control.cordon(name) or name in self._control.releasing():
                self._cordons[name] = _Cordon(now, _running(inputs), inputs.between_batches)
                _LOG.info("executor-cordoned", executor=name, node=info.node_name, overdue=overdue)

    def _is_state_unseen(self, inputs: ReleaseInputs, now: float) -> bool:
        """Whether some query may have state on any executor, and its next batch is worth the wait."""
        idle = set(inputs.unseen).intersection(inputs.between_batches)
        self._idle_since = {query: self._idle_since.get(query, now) for query in idle}
        return any(now < self._idle_since.get(query, now) + _LONG_IDLE for query in inputs.unseen)

    def _release_idle(
        self, present: Mapping[str, ExecutorInfo], elsewhere: Collection[str], inputs: ReleaseInputs, now: float
    ) -> None:
        if self._dynamic or not elsewhere or now < self._next_release:
            return
        complete, running = len(elsewhere) >= self._target, _running(inputs)
        for name, cordon in sorted(self._cordons.items()):
            if not complete and now < cordon.since + self._grace:
                continue
            cordon.waits_for = {
                query: batch for query, batch in cordon.waits_for.items() if running.get(query, batch + 1) <= batch
            }
            if cordon.idle and now >= cordon.since + _EVENT_DELAY:
                cordon.waits_for |= {query: running[query] for query in cordon.idle if query in running}
                cordon.idle = ()
            if self._cordon_ends_executor and running:
                continue
            if cordon.waits_for or cordon.idle:
                continue
            self._next_release = now + _RELEASE_EVERY  # unless this one comes about
            if present[name].node_name not in inputs.overdue and self._would_lose_rdds():
                continue
            if self._base < 0:
                # A standalone application has no target of its own; elsewhere the target is a number to be met.
                self._limit_before = UNLIMITED if self._control.standalone else len(present)
            self._base = max(self._base, len(elsewhere))  # from here on: a call that releases none sets the target, too
            remaining = len(present) - 1
            if self._control.release(name, remaining, self._limit_before):
                self._grace = _GRACE if complete else min(2 * self._grace, _LONGEST_GRACE)
                self._released.add(name)
                del self._cordons[name]
                _LOG.info("executor-released", executor=name, remaining=remaining)
                self._next_release = 0.0
                return  # one in a cycle; the next one starts from a fresh state

    def _would_lose_rdds(self) -> bool:
        """Whether RDDs live on executors alone; counted right before each release."""
        self._local_checkpoints = self._control.local_checkpoints()
        return self._local_checkpoints > 0

    def _adjust_target(self, present: Mapping[str, ExecutorInfo], elsewhere: Collection[str]) -> None:
        if self._dynamic or self._base < 0:
            return
        if not self._drained and not self._cordons:
            self.restore_target()
            return
        self._base = max(self._base, len(elsewhere))
        hosts = [present[name].host for name in elsewhere]
        self._target = executor_target(hosts, self._base, self._control.worker_hosts(), self._drained)
        limit = self._target + len(present) - len(elsewhere)
        if self._control.limit_executors(limit, self._limit_before):
            _LOG.info("executors-limited", most=limit)


def _running(inputs: ReleaseInputs) -> dict[str, int]:
    """Return the batches that run: query -> batch."""
    return {query: batch for query, batch in inputs.batches.items() if query not in inputs.between_batches}


def _was_restarted(info: ExecutorInfo, drains: Mapping[str, DrainedNode]) -> bool:
    """Whether an executor was started on a node after its drain began."""
    drain = drains.get(info.node_name)
    return drain is not None and drain.remove and info.added > drain.since
