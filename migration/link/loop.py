"""`attach`: the observing and reconciling loop inside a Spark driver.

One thread reads Spark's event stream, folds it into the task table, and at every quiet moment of a query steers what
the reconciler says is due. A second one, the courier, talks to Redis; a third sees to queries that start. Whatever
fails in here, the queries go on, and the link tries again as long as the Spark session lives.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from rechannel.conf import loader
from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from rechannel.migration.link import log_output
from rechannel.migration.link.driver_state import DriverState, ReconcilerLimits
from rechannel.migration.link.event_feed import EventFeed
from rechannel.migration.link.executor_release import ExecutorReleaser, scene
from rechannel.migration.link.initial_placement import InitialPlacement
from rechannel.migration.link.mailbox import Mailbox, traced
from rechannel.migration.link.reconciler import Reconciler
from rechannel.migration.link.report import environment, operators_placed, problems, query_state
from rechannel.migration.link.snapshot_lag import Snapshots
from rechannel.migration.link.stages import Stages
from rechannel.migration.link.state_check import StateCheck
from rechannel.migration.link.steering import Steering
from rechannel.migration.spark import compatibility
from rechannel.migration.spark.adapter import ActiveQuery, SparkAdapter
from rechannel.migration.spark.gateway import LinkError
from rechannel.migration.spark.hooks import StartHook
from rechannel.monitors.spark import events, task_table
from rechannel.wire.codes import MoveState
from rechannel.wire.envelope import Envelope, EnvelopeFactory, MessageError, encode
from rechannel.wire.messages import Drain, ExecutorInfo, LinkReport, MoveTransition, StandingOrders
from rechannel.wire.signing import Verifier

_LOG = structlog.get_logger("rechannel.link")
_LOOK = 3.0  # seconds between two looks at Spark's own state
_CATCH_UP = 1.0  # seconds of events that one turn folds in at most
_LONGEST_REST = 30.0  # seconds after a turn that failed
_START_POLL = 2  # seconds that the thread of starts waits in Spark before it looks whether the link ends
_MAINTENANCE = "spark.sql.streaming.stateStore.maintenanceInterval"

_links: dict[str, Link] = {}
_links_lock = threading.Lock()


def attach(spark: Any, settings: Settings | None = None, *, strict: bool = False) -> Link:
    """Join this application's streaming queries to Rechannel.

    ``spark`` is a classic SparkSession. Without ``settings`` they are read as `rechannel.conf.loader.load` does: from
    the file that ``RECHANNEL_CONFIG`` names, else ./rechannel.toml, else /etc/rechannel/rechannel.toml.
    Never makes a query fail: where attaching is not possible, the returned link is inactive and its ``problem`` says
    why; with ``strict`` the error is raised instead. Attaching twice returns the same link.
    """
    log_output.keep_off_standard_output()
    link = Link()
    try:
        if settings is None:
            _LOG.info("configuration", sentence=loader.find_config_file(None, os.environ).describe())
            settings = load()
        adapter = SparkAdapter(spark)
        with _links_lock:
            present = _links.get(adapter.application)
            if present is not None and present.active:
                adapter.close()
                return present
            link._start(adapter, settings)
            _links[adapter.application] = link
    except Exception as error:  # the user's query must never notice
        if strict:
            raise
        link.problem = str(error)
        _LOG.error("not attached; queries run as without Rechannel", error=str(error))
    return link


class Link:
    """A handle on what `attach` started. ``problem`` is empty while all is well."""

    def __init__(self) -> None:
        self.problem = ""
        self.failures = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def active(self) -> bool:
        """Whether the link is at work."""
        return self._thread is not None and self._thread.is_alive()

    def detach(self, timeout: float = 10.0) -> None:
        """Stop steering, take the listener out of Spark, and remove every file."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _start(self, adapter: SparkAdapter, settings: Settings) -> None:
        self._feed = EventFeed(adapter, settings.link.directory, settings.link.event_log_bytes)
        try:
            self._prepare(adapter, settings)
        except BaseException:
            # Half attached, Spark would write a stream that nobody reads and deletes.
            with contextlib.suppress(LinkError):
                adapter.stop_watching_starts()
            self._feed.close()
            raise
        self._courier.start()
        self._thread = threading.Thread(target=self._run, name="rechannel-link", daemon=True)
        self._starts_thread = threading.Thread(target=self._see_to_starts, name="rechannel-starts", daemon=True)
        self._thread.start()
        self._starts_thread.start()
        # A script that ends without a word leaves nothing behind either.
        atexit.register(self.detach)
        _LOG.info("attached", application=adapter.application, spark=adapter.version)
        for item in compatibility.advice(adapter.setting):
            _LOG.info("a setting of Spark is worth a change", sentence=item.sentence)

    def _prepare(self, adapter: SparkAdapter, settings: Settings) -> None:
        self._adapter = adapter
        self._settings = settings
        self._table = task_table.TaskTable()
        self._lines: deque[bytes] = deque()
        self._orders: Envelope | None = None
        self._drains: dict[str, Drain] = {}  # by node
        self._drifted = self._garbage = self._rejected = 0
        self._attached, self._next_look, self._next_report, self._next_tick = time.time(), 0.0, 0.0, 0.0
        maintenance = compatibility.seconds(adapter.setting(_MAINTENANCE, "60s")) or 60.0
        self._reconciler = Reconciler(ReconcilerLimits.of(settings, maintenance))
        self._stages = Stages(adapter.operators, adapter.checkpoints.store_names)
        self._check = StateCheck(adapter, self._table, self._stages)
        self._steering = Steering(
            adapter, self._table, self._reconciler, self._stages, self._catch_up, self._post_transitions
        )
        self._environment = environment(adapter.setting)
        self._problems = compatibility.sentences(adapter.version, adapter.setting)
        verifier = Verifier.from_file(named) if (named := settings.signing.public_key_file) else None
        if verifier is None:
            self._problems.append("signing.public_key_file is not set: this link reports but obeys nobody")
        author = EnvelopeFactory(settings.cluster.name, f"link@{adapter.application}")
        self._courier = Mailbox(settings.redis, author, adapter.application, verifier)
        self._starts = InitialPlacement(adapter, self._may_be_given, lambda: self._drains, self._courier.recall)
        dynamic, ends = (compatibility.enabled(adapter.setting, what) for what in ("dynamicAllocation", "decommission"))
        self._releases = ExecutorReleaser(adapter.executor_control, dynamic=dynamic, ends_by_itself=ends)
        self._snapshots = Snapshots(adapter.latest_snapshot, self._table.committed, supported=adapter.tells_snapshots)
        # The stream starts before the list of executors is read: an executor added in between is seen twice, not never.
        self._feed.open()
        self._table.executors.update({item.executor: item for item in adapter.executors()})
        self._courier.fetch_orders()
        self._take_orders()
        self._watch_starts()

    def _watch_starts(self) -> None:
        """Watch starts of queries, anew where the event stream was opened anew."""
        with contextlib.suppress(LinkError):
            self._adapter.stop_watching_starts()
        self._openings = self._feed.openings
        self._hook = self._adapter.watch_starts()

    # -- the loop --

    def _run(self) -> None:
        in_a_row = 0
        try:
            while not self._stop.wait(self._pause()):
                try:
                    self._turn()
                    in_a_row = 0
                except Exception as error:  # noqa: BLE001  the user's query must never notice
                    if self._adapter.gone:
                        self.problem = self.problem or "the Spark session is over"
                        return
                    in_a_row += 1
                    self.failures += 1
                    _LOG.warning("a turn failed", error=str(error), in_a_row=in_a_row, **traced(in_a_row == 1))
                    self._stop.wait(min(0.05 * 2 ** min(in_a_row, 20), _LONGEST_REST))
                if self._table.ended:
                    return
        finally:
            self._finish()

    def _pause(self) -> float:
        limits = self._settings.link
        # A plan has to be read before the next batch replaces it, a steer said before the next batch begins.
        return limits.poll_moving if self._reconciler.waiting or self._stages.learning else limits.poll

    def _turn(self) -> None:
        now = time.time()
        caught_up = self._catch_up()
        if self._openings != self._feed.openings:
            self._watch_starts()
        self._mail(now)
        if caught_up:
            self._boundaries()
        if now >= self._next_look:
            self._look(now)
        if now >= self._next_tick:
            self._next_tick = now + 1.0
            self._post_transitions(self._reconciler.tick(self._observed(), now))
        if (self._drains or self._releases.under_way) and not self._reconciler.paused:
            self._releases.turn(scene(self._table, self._check.queries, self._drains, self._reconciler.moves), now)
        self._snapshots.turn(self._stages.known, now, self._reconciler.unsteered)
        if now >= self._next_report:
            self._next_report = now + self._settings.link.report
            self._courier.post_report(self._report(), self._evidence_nodes())
            self._steering.forget_settled()

    def _boundaries(self) -> None:
        """See to every query at a quiet moment of which something is to be done."""
        waiting = self._reconciler.waiting_queries
        for query, active in list(self._check.queries.items()):
            if (query in waiting or self._starts.pending(query, active.run)) and self._table.quiet(query):
                self._add_own_moves(active)
                self._steering.at_boundary(query, partial(self._observed, [active]))

    def _catch_up(self) -> bool:
        """Fold in all that Spark has written by now: only then is what looks quiet known to be quiet.

        Returns False if there is more than a turn may take. A line leaves the queue before it is handled, so one that
        fails costs itself alone.
        """
        until = time.monotonic() + _CATCH_UP
        while not self._stop.is_set():
            while self._lines:
                self._event_line(self._lines.popleft(), time.time())
                if time.monotonic() > until:
                    return False
            self._lines.extend(self._feed.read(time.time()))
            if not self._lines:
                return True
        return False

    def _event_line(self, line: bytes, now: float) -> None:
        try:
            event = events.parse(line)
        except events.EventError:
            self._garbage += 1
            self._feed.mark_incomplete()
            return
        if event is not None:
            self._event(event, now)

    def _event(self, event: events.Event, now: float) -> None:
        for notice in self._table.add(event):
            match notice:
                case task_table.StatefulStageFinished():
                    self._stages.finished(notice)
                case task_table.PartitionMoved():
                    self._relocated(notice)
                case task_table.BatchDone():
                    self._batch_done(notice, now)
                case task_table.QueryBusy():
                    active = self._check.queries.get(notice.query)
                    if active is None or active.run != notice.run:
                        self._next_look = 0.0
                case events.ExecutorRemoved():
                    self._starts.lost(notice.executor, self._table.placement)
                    self._post_transitions(self._reconciler.executor_gone(notice.executor, now))
                case events.QueryTerminated():
                    self._run_ended(notice, now)

    def _batch_done(self, done: task_table.BatchDone, now: float) -> None:
        if done.report is not None:
            self._courier.post_batch(done.report, done.run)
        # Only where partitions are matters here: the rest costs as much as there are queries.
        table = self._table
        where = DriverState(table.executors.keys(), table.placement, table.ran, {}, (), table.last_batch)
        self._post_transitions(self._reconciler.batch_done(done.query, done.batch, where, now, done.seconds))
        if (active := self._check.queries.get(done.query)) is not None:
            placed = operators_placed(active, table, self._stages.known)
            last = self._starts.ran(done.query, active.name, done.batch, placed, table.executors)
            if last is not None:
                self._courier.post_placement(last)

    def _run_ended(self, ended: events.QueryTerminated, now: float) -> None:
        self._starts.ended(ended.query, ended.run)
        self._check.forget(ended.run)
        self._stages.forget(ended.run)
        self._post_transitions(self._reconciler.run_ended(ended.query, ended.run, now))

    def _relocated(self, notice: task_table.PartitionMoved) -> None:
        """Count a partition that Spark ran elsewhere though its executor lives and nobody asked."""
        asked = self._reconciler.asked_for(notice.query, notice.stage, notice.partition, notice.after)
        self._drifted += notice.before in self._may_hold() and not asked

    def _look(self, now: float) -> None:
        """Compare what the events told with Spark's own state, and make up for what was lost."""
        self._next_look = now + _LOOK
        for event in self._check.look(now, events_lost=self._feed.take_incomplete()):
            self._event(event, now)
        self._check.check_places(self._reconciler.moving)

    # -- executors --

    def _may_be_given(self) -> dict[str, ExecutorInfo] | None:
        """Executors that may be given partitions by the link itself; None while it may begin nothing."""
        return None if self._reconciler.paused or not self._settings.link.spread else self._may_hold()

    def _may_hold(self) -> dict[str, ExecutorInfo]:
        """Executors that may hold partitions: on no drained node, and not about to leave."""
        leaving = self._check.retiring.union(self._releases.cordoned)
        return {
            name: info
            for name, info in dict(self._table.executors).items()
            if name not in leaving and info.host not in self._drains
        }

    def _evidence_nodes(self) -> set[str]:
        """Nodes whose agents are asked whether an old copy was closed: those of moves that wait for it."""
        states = (MoveState.STEERED, MoveState.RELEASED_IDLE, MoveState.DRAINED)
        holders = {move.holder for move in self._reconciler.moves if move.state in states}
        return {info.host for name, info in self._table.executors.items() if name in holders}

    # -- mail --

    def _take_orders(self) -> None:
        orders = self._courier.take_orders()
        if orders is not None and isinstance(orders.body, StandingOrders):
            self._orders = orders
            self._drains = {drain.node: drain for drain in orders.body.drains}
            self._reconciler.paused = orders.body.paused

    def _mail(self, now: float) -> None:
        self._take_orders()
        desired = self._courier.take_desired()
        if desired is not None:
            try:
                self._post_transitions(self._reconciler.accept(desired, self._observed(), now))
            except MessageError as error:
                self._rejected += 1
                _LOG.warning("desired placement refused", error=str(error))
        for store in self._courier.take_closed():
            active = self._check.by_run.get(store.run)
            for (run, ordinal), stage in self._stages.known.items():
                if run != store.run or all(item.operator != store.operator for item, _ in stage.operators):
                    continue
                stores = [(item.operator, name) for item, names in stage.operators for name in names]
                query = active.query if active is not None else ""
                self._post_transitions(self._reconciler.closed(store, stores, ordinal, query, now))

    def _post_transitions(self, lines: Sequence[MoveTransition]) -> None:
        if lines:
            self._courier.post_journal(list(lines))
        for line in lines:
            _LOG.info("move", **msgspec.structs.asdict(line))

    # -- what is observed --

    def _observed(self, only: Collection[ActiveQuery] | None = None) -> DriverState:
        """Return what is known of all queries, or of those that it is asked for."""
        asked = self._check.queries.values() if only is None else only
        runs = {item.query: item.run for item in asked if not item.problem}
        return DriverState(
            executors=self._table.executors.keys(),
            placement=self._table.placement,
            ran=self._table.ran,
            runs=runs,
            stores={
                (query, stage)
                for query, run in runs.items()
                for stage in self._stages.of_run(run, self._table.stages.get(query, ()))
            },
            batches=self._table.last_batch,
            quiet={query for query in runs if self._table.quiet(query)},
            closed=self._table.executors.keys() - self._may_hold().keys(),
            replay=self._snapshots.replay(self._reconciler.unsteered, runs),
        )

    def _add_own_moves(self, query: ActiveQuery) -> None:
        """Add the moves of our own that a new, a restarted or a bereft query needs."""
        if query.problem or not operators_placed(query, self._table, self._stages.known):
            return
        stages = self._stages.of_run(query.run, self._table.stages.get(query.query, ()))
        wish = self._starts.due(query.query, query.run, stages, self._table.placement, self._reconciler.moving)
        if wish is not None:
            decision = wish.moves[0].move.rpartition(".")[0]
            self._post_transitions(self._reconciler.add(decision, wish.moves, query.run, wish.why, time.time()))

    # -- queries that start --

    def _see_to_starts(self) -> None:
        """Place each query that starts; it waits for that before its first batch, `START_WAIT` seconds at most."""
        next_beat = 0.0
        while not self._stop.is_set() and self.active:
            hook: StartHook = self._hook
            try:
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + _LOOK
                    hook.beat()
                if (start := hook.take(_START_POLL)) is not None:
                    self._see_to_start(hook, start)
            except LinkError as error:
                _LOG.debug("starts of queries are not seen for a moment", error=str(error))
                self._stop.wait(1.0)

    def _see_to_start(self, hook: StartHook, start: Any) -> None:
        try:
            started = self._adapter.started_query(hook.event(start))
            if started is not None:
                self._starts.started(*started)
        except Exception as error:  # noqa: BLE001  whatever goes wrong, the query starts
            _LOG.warning("a query's start could not be seen to", error=str(error))
        finally:
            hook.release(start)

    # -- reporting --

    def _report(self) -> LinkReport:
        reconciler = self._reconciler
        sources = self._table, self._stages.known, self._snapshots.of, self._stages.unlike
        return LinkReport(
            name=self._adapter.name,
            spark_version=self._adapter.version,
            attached=self._attached,
            executors=sorted(self._table.executors.values(), key=lambda item: item.executor),
            queries=[query_state(query, *sources) for query in self._check.queries.values()],
            moves=[move.view() for move in reconciler.moves],
            decision=reconciler.decision,
            accepted_epoch=max(reconciler.epoch, self._orders.epoch if self._orders is not None else 0),
            failed_tasks=self._table.failed_tasks,
            missed=reconciler.missed,
            landed=reconciler.landed,
            abandoned=reconciler.abandoned,
            drifted_partitions=self._drifted,
            initial_placements=self._starts.words(self._check.queries),
            standing_orders=encode(self._orders).decode() if self._orders is not None else "",
            environment=self._environment,
            releasing_executors=sorted(
                (self._check.retiring & self._table.executors.keys()).union(self._releases.cordoned)
            ),
            rejected_messages=self._rejected + self._courier.refused,
            problems=problems(
                self._problems,
                garbage=self._garbage,
                lost_events=self._feed.dropped,
                healed=self._check.healed,
                dropped=self._courier.dropped,
                releasing=self._releases.problem,
            ),
        )

    def _finish(self) -> None:
        """Take everything of ours out of the driver; each step whatever became of the others."""
        self._stop.set()
        steps: list[Callable[[], object]] = [
            self._adapter.stop_watching_starts,
            self._releases.lift,
            self._feed.close,
            lambda: self._courier.post_report(self._report(), set()),
            lambda: self._courier.stop(timeout=3 * self._settings.redis.timeout),
            lambda: self._starts_thread.join(2 * _START_POLL),
            self._drop_parts,
            self._adapter.close,
            lambda: atexit.unregister(self.detach),
        ]
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001  the next step is due all the same
                _LOG.debug("a step of detaching failed", error=str(error))
        with _links_lock:
            if _links.get(self._adapter.application) is self:
                del _links[self._adapter.application]
        _LOG.info("detached", application=self._adapter.application)

    def _drop_parts(self) -> None:
        """Let go of whatever refers to Java objects: a script may hold this handle long after its SparkContext."""
        for part in ("_feed", "_stages", "_check", "_steering", "_starts", "_releases", "_snapshots", "_hook"):
            vars(self).pop(part, None)
