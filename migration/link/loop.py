"""Loop of the link: one thread that observes the driver, reconciles and steers.

The thread reads Spark's event stream, folds it into the task table, and at every quiet moment of a query steers what
the reconciler says is due. The mailbox has a second thread, which talks to Redis; a third one places queries that
start. Whatever fails in here, the queries go on, and the link tries again as long as the Spark session lives.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec
import structlog

from rechannel.conf.settings import Settings
from rechannel.migration.link.driver_state import DriverState, ReconcilerLimits
from rechannel.migration.link.event_feed import EventFeed
from rechannel.migration.link.executor_release import ExecutorReleaser, collect_inputs
from rechannel.migration.link.initial_placement import InitialPlacement, StartWatcher
from rechannel.migration.link.mailbox import Mailbox, traceback_fields
from rechannel.migration.link.reconciler import Reconciler
from rechannel.migration.link.report import (
    environment,
    highest_epoch,
    operator_placement,
    problem_sentences,
    query_state,
)
from rechannel.migration.link.snapshot_lag import SnapshotLag
from rechannel.migration.link.stages import Stages
from rechannel.migration.link.state_check import StateCheck
from rechannel.migration.link.steering import Steering
from rechannel.migration.spark import compatibility
from rechannel.migration.spark.adapter import ActiveQuery, SparkAdapter
from rechannel.migration.spark.gateway import LinkError
from rechannel.monitors.spark import events, task_table
from rechannel.wire.codes import MoveState
from rechannel.wire.envelope import Envelope, EnvelopeFactory, MessageError, encode
from rechannel.wire.messages import DrainedNode, ExecutorInfo, LinkReport, MoveTransition, StandingOrders, Unit
from rechannel.wire.signing import Verifier

_LOG = structlog.get_logger("rechannel.link")
_CHECK_EVERY, _REPORT_EVERY = 3.0, 1.0  # seconds between two comparisons with Spark's own state, and two reports
_PAUSE, _SHORT_PAUSE = 0.1, 0.005  # seconds between two reads of the event stream
_MAX_CATCH_UP = 1.0  # seconds of reading events in one cycle; beyond: the next cycle reads on
_LONGEST_REST = 10.0  # seconds after a cycle that failed: a watchdog in the JVM waits 30 for the next heartbeat
_MAINTENANCE = "spark.sql.streaming.stateStore.maintenanceInterval"


class Link:
    """A handle on what `attach` started. ``problem`` is empty while all is well."""

    def __init__(self) -> None:
        self.problem, self.mode, self.failures = "", "", 0
        # `_ended`, since in Python 3.11 a join that Ctrl-C interrupts takes a thread that still runs for ended.
        self._stop, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def active(self) -> bool:
        """Whether the link is at work."""
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    def detach(self, timeout: float = 10.0) -> bool:
        """Stop steering, remove the listener and every file; returns whether that is done."""
        self._stop.set()
        thread = self._thread
        if thread is None or not thread.is_alive():
            return True
        if thread is not threading.current_thread() and self._ended.wait(timeout):
            thread.join()
        return not thread.is_alive()

    def start(self, adapter: SparkAdapter, settings: Settings, on_end: Callable[[str, Link], None]) -> None:
        """Begin to work; the adapter is closed with the link, or at once if it cannot begin.

        ``on_end`` is called with the application's id and this link once everything is taken out of Spark again.
        """
        self.mode = settings.reschedule.mode
        try:
            cycle = LinkCycle(adapter, settings, self._stop)
        except BaseException:
            with contextlib.suppress(LinkError):
                adapter.close()
            raise
        end = partial(on_end, adapter.application, self)
        try:
            cycle.watch_spark()
            advice = compatibility.advice(adapter.setting)
            cycle.start_threads()
            # Started last: it takes everything out of Spark again. Until it runs, the handler below does.
            thread = threading.Thread(target=self._run, args=(cycle, end), name="rechannel-link", daemon=True)
            thread.start()
            self._thread = thread
        except BaseException:
            # Otherwise Spark would write a stream that is never read or deleted.
            self._finish(cycle, end)
            raise
        # A script that ends without calling `detach` leaves nothing behind either.
        atexit.register(self.detach)
        _LOG.info("attached", application=adapter.application, spark=adapter.version)
        for item in advice:
            _LOG.info("a setting of Spark is worth a change", sentence=item.sentence)

    def _run(self, cycle: LinkCycle, on_end: Callable[[], None]) -> None:
        in_a_row = 0
        try:
            while not self._stop.wait(cycle.pause()):
                try:
                    cycle.run()
                    in_a_row = 0
                except Exception as error:  # noqa: BLE001  the user's query must never notice
                    if cycle.adapter.is_over:
                        self.problem = self.problem or "the Spark session is over"
                        return
                    in_a_row += 1
                    self.failures += 1
                    fields = traceback_fields() if in_a_row == 1 else {}
                    _LOG.warning("a cycle failed", error=str(error), in_a_row=in_a_row, **fields)
                    self._stop.wait(min(0.05 * 2 ** min(in_a_row, 20), _LONGEST_REST))
                if cycle.has_ended:
                    return
        finally:
            self._finish(cycle, on_end)
            _LOG.info("detached", application=cycle.adapter.application)

    def _finish(self, cycle: LinkCycle, on_end: Callable[[], None]) -> None:
        """Take everything of the link out of the driver; each step even after an error of another."""
        self._stop.set()
        steps = [*cycle.closing_steps(), lambda: atexit.unregister(self.detach), on_end, self._ended.set]
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001  the next step is due all the same
                _LOG.debug("a step of detaching failed", error=str(error))


class LinkCycle:
    """All parts of a link at work, and its cycle; the link drops it whole at its end.

    Parts refer to Java objects, and a script may hold its link for long.
    """

    def __init__(self, adapter: SparkAdapter, settings: Settings, stop: threading.Event) -> None:
        """Make the parts; nothing of them is in Spark yet."""
        self.adapter = adapter
        self._settings, self._stop = settings, stop
        self._feed = EventFeed(adapter, settings.link.directory)
        self._table, self._event_lines = task_table.TaskTable(), deque[bytes]()
        self._orders: Envelope | None = None
        self._drains: dict[str, DrainedNode] = {}  # by node
        self._transitions = deque[MoveTransition]()  # to be logged
        self._drifted = self._garbage = self._rejected = 0
        self._attached, self._next_check, self._next_report, self._next_tick = time.time(), 0.0, 0.0, 0.0
        maintenance = compatibility.seconds(adapter.setting(_MAINTENANCE, "60s")) or 60.0
        self._reconciler = Reconciler(ReconcilerLimits.of(settings, maintenance))
        self._stages = Stages(adapter.operators, adapter.checkpoints.store_names)
        self._check = StateCheck(adapter, self._table, self._stages, time.monotonic)
        self._steering = Steering(
            adapter,
            self._table,
            self._reconciler,
            self._stages,
            catch_up_with_events=self._catch_up_with_events,
            journal=self._journal,
        )
        self._environment = environment(adapter.setting)
        self._problems = compatibility.sentences(adapter.version, adapter.setting)
        verifier = Verifier.from_file(path) if (path := settings.signing.public_key_file) else None
        if verifier is None:
            self._problems.append("signing.public_key_file is not set: this link reports but accepts no orders")
        factory = EnvelopeFactory(settings.cluster.name, f"link@{adapter.application}")
        self._mailbox = Mailbox(settings.redis, factory, adapter.application, verifier)
        self._initial_placement = InitialPlacement(
            adapter, self._spreadable_executors, lambda: self._drains, self._mailbox.read_last_placement
        )
        self._start_watcher = StartWatcher(adapter, self._initial_placement, stop)
        self._openings = 0  # of the feed, when starts were watched last
        self._releaser = ExecutorReleaser(
            adapter.executor_control,
            dynamic=compatibility.is_enabled(adapter.setting, compatibility.DYNAMIC_ALLOCATION),
            cordon_ends_executor=compatibility.is_enabled(adapter.setting, compatibility.DECOMMISSION),
        )
        self._snapshot_lag = SnapshotLag(
            adapter.coordinator.latest_snapshots, self._table.committed, supported=adapter.reports_snapshots
        )

    def watch_spark(self) -> None:
        """Open the event stream, read what there is, and watch starts of queries."""
        # The stream starts before the list of executors is read: an executor added in between is seen twice, not never.
        self._feed.open()
        self._table.executors.update({item.executor: item for item in self.adapter.executors()})
        self._mailbox.read_orders()
        self._apply_orders()
        self._watch_starts()

    def _watch_starts(self) -> None:
        """Watch starts of queries, anew where the event stream was opened anew."""
        openings = self._feed.openings
        if self._settings.link.spread:  # else nothing is placed at a start
            self._start_watcher.watch()  # if that fails, the next cycle tries again
        self._openings = openings

    def start_threads(self) -> None:
        """Start what works beside the link's own thread."""
        self._mailbox.start()
        self._start_watcher.start()

    @property
    def has_ended(self) -> bool:
        """Whether Spark's last event was read."""
        return self._table.ended

    def pause(self) -> float:
        """Return the seconds until the next cycle."""
        # A plan has to be read before the next batch replaces it, and Spark steered before the next batch begins.
        is_short = self._reconciler.waiting or self._stages.pending or self._has_own_moves_due()
        return _SHORT_PAUSE if is_short else _PAUSE

    def _has_own_moves_due(self) -> bool:
        """Whether a running batch ends at whose end the link moves partitions on its own."""
        in_batch = (it for it in self._check.queries.values() if not it.problem and self._table.in_batch(it.query))
        return self._initial_placement.has_pending and any(map(self._is_placement_pending, in_batch))

    def _is_placement_pending(self, active: ActiveQuery) -> bool:
        # A query without state stays pending until it ends.
        return self._table.has_state(active.query) and self._initial_placement.is_pending(active.query, active.run)

    def run(self) -> None:
        """Run one cycle."""
        now, tick = time.time(), time.monotonic()  # `tick` tells what is due: the wall clock may be set back
        self._feed.beat(tick)  # events that wait for long, each with a plan to be read, must not silence it
        caught_up = self._catch_up_with_events()
        if self._openings != self._feed.openings:
            self._watch_starts()
        self._exchange_messages(now)
        if caught_up:
            self._handle_boundaries()
        if caught_up and tick >= self._next_check:  # else events that are still to be read would count as lost
            self._next_check = tick + _CHECK_EVERY
            self._check_against_spark(now)
        if tick >= self._next_tick:
            self._next_tick = tick + 1.0
            self._journal(self._reconciler.tick(self._driver_state(), now))
            self._initial_placement.restore_wait(self._table.placement)
        due = (self._drains or self._releaser.active) and not self._reconciler.paused
        if due and caught_up and self._check.compared:  # else batches run, and state is, where the table shows none
            own, others = self._check.queries, self._check.others.values()
            inputs = collect_inputs(self._table, own, self._drains, self._reconciler.moves, now, others)
            self._releaser.advance(inputs, tick)
        if self._settings.link.spread and not self._reconciler.paused:
            self.adapter.warm_up.advance(self._table.executors, self._stages.operator_names)
        if tick >= self._next_report:
            self._next_report = tick + _REPORT_EVERY
            self._mailbox.post_report(self._report(), self._evidence_nodes())
            self._steering.remove_final()
        self._log_transitions()
        # Last: where Spark's coordinator does not answer, these fail, and the rest of the cycle is done.
        self._snapshot_lag.advance(self._stages.mapped, tick, self._reconciler.units_up_next)
        if caught_up and self._table.unconfirmed:
            self._check.confirm_placements(self._reconciler.moving)

    def _handle_boundaries(self) -> None:
        """Handle every query that is at a quiet moment and has something to be done."""
        waiting, any_pending = self._reconciler.waiting_queries, self._initial_placement.has_pending
        for query, active in list(self._check.queries.items()):
            is_due = query in waiting or (any_pending and self._is_placement_pending(active))
            if is_due and self._table.is_quiet(query):
                self._add_own_moves(active)
                self._steering.handle_boundary(query, partial(self._driver_state, [active]), time.time)

    def _catch_up_with_events(self) -> bool:
        """Fold in all events by now: only then is a query that looks quiet known to be quiet.

        Returns False if there is more than a cycle may take. A line leaves the queue before it is handled, so one that
        fails costs itself alone.
        """
        until = time.monotonic() + _MAX_CATCH_UP
        while not self._stop.is_set():
            while self._event_lines:
                self._fold_line(self._event_lines.popleft(), time.time())
                if time.monotonic() > until:
                    return False
            self._event_lines.extend(self._feed.read())
            if not self._event_lines:
                return True
        return False

    def _fold_line(self, line: bytes, now: float) -> None:
        try:
            event = events.parse(line)
        except events.EventError:
            self._garbage += 1
            self._feed.mark_incomplete()
            return
        if event is not None:
            try:
                self._fold_event(event, now)
            except Exception:
                self._feed.mark_incomplete()
                raise

    def _fold_event(self, event: events.Event, now: float) -> None:
        for notice in self._table.add(event):
            match notice:
                case task_table.StatefulStageFinished():
                    self._stages.map_finished(notice)
                case task_table.PartitionMoved():
                    self._count_drift(notice)
                case task_table.BatchDone():
                    self._handle_batch(notice, now)
                case task_table.QueryBusy():
                    if notice.run not in self._check.by_run:
                        self._next_check = 0.0
                case events.ExecutorRemoved():
                    self._initial_placement.record_lost_executor(notice.executor, self._table.placement)
                    self._journal(self._reconciler.handle_executor_loss(notice.executor, now))
                case events.QueryTerminated():
                    self._handle_run_end(notice, now)

    def _handle_batch(self, done: task_table.BatchDone, now: float) -> None:
        if done.report is not None:
            self._mailbox.post_batch(done.report, done.run)
        # Only the placement matters here: the rest of the state costs as much as there are queries.
        table = self._table
        driver = DriverState(table.executors.keys(), table.placement, table.last_ran, {}, (), table.last_batch)
        self._journal(self._reconciler.handle_batch(done.query, done.batch, driver, now, done.seconds))
        if (active := self._check.queries.get(done.query)) is not None:
            placement = operator_placement(active, table, self._stages)
            last = self._initial_placement.save_last_placement(
                done.query, active.name, done.batch, placement, table.executors
            )
            if last is not None:
                self._mailbox.post_placement(last)

    def _handle_run_end(self, ended: events.QueryTerminated, now: float) -> None:
        self._initial_placement.remove_run(ended.query, ended.run)
        self._check.remove_run(ended.run)
        self._stages.remove_run(ended.run)
        self._journal(self._reconciler.handle_run_end(ended.query, ended.run, now))

    def _count_drift(self, notice: task_table.PartitionMoved) -> None:
        """Count a partition that left a living executor without having been steered."""
        unit = Unit(notice.query, notice.stage, notice.partition)
        left = notice.before in self._usable_executors()
        self._drifted += left and not self._reconciler.was_steered_to(unit, notice.after)

    def _check_against_spark(self, now: float) -> None:
        """Compare the task table with Spark's own state, and fold in the events that were lost."""
        for event in self._check.find_lost_events(now, events_lost=self._feed.pop_incomplete()):
            self._fold_event(event, now)

    # -- executors --

    def _spreadable_executors(self) -> dict[str, ExecutorInfo] | None:
        """Return executors that the link may give partitions to, None while it may begin nothing."""
        return None if self._reconciler.paused or not self._settings.link.spread else self._usable_executors()

    def _usable_executors(self) -> dict[str, ExecutorInfo]:
        """Return executors that may hold partitions: on no drained node, and not being released."""
        releasing = self._check.releasing.union(self._releaser.releasing)
        return {
            name: info
            for name, info in dict(self._table.executors).items()
            if name not in releasing and info.node_name not in self._drains
        }

    def _evidence_nodes(self) -> set[str]:
        """Return agents' nodes of moves that wait for evidence that their old copy was closed."""
        holders = {
            move.holder for move in self._reconciler.moves if move.awaits_landing or move.state is MoveState.DRAINED
        }
        return {node for name, info in self._table.executors.items() if name in holders for node in info.agent_names}

    # -- messages --

    def _apply_orders(self) -> None:
        orders = self._mailbox.pop_orders()
        if orders is not None and isinstance(orders.body, StandingOrders):
            self._orders = orders
            self._drains = {drain.node: drain for drain in orders.body.drains}
            self._reconciler.paused = orders.body.paused

    def _exchange_messages(self, now: float) -> None:
        self._apply_orders()
        desired = self._mailbox.pop_desired()
        if desired is not None:
            try:
                self._journal(self._reconciler.accept_desired(desired, self._driver_state(), now))
            except MessageError as error:
                self._rejected += 1
                _LOG.warning("desired placement rejected", error=str(error))
        for closing in self._mailbox.pop_closings():
            store = closing.store
            active = self._check.by_run.get(store.run)
            query = active.query if active is not None else ""
            for number, stage in self._stages.stages_with(store.run, store.operator):
                closed = self._reconciler.handle_closed_store(store, stage.store_names, number, query, now, closing.at)
                self._journal(closed)

    def _journal(self, transitions: Sequence[MoveTransition]) -> None:
        if transitions:
            self._mailbox.post_journal(list(transitions))
            self._transitions.extend(transitions)

    def _log_transitions(self) -> None:
        """Log moves once nothing waits for this thread: who reads standard error may be slow."""
        while self._transitions:
            _LOG.info("move", **msgspec.structs.asdict(self._transitions.popleft()))

    # -- the driver's state --

    def _driver_state(self, queries: Collection[ActiveQuery] | None = None) -> DriverState:
        """Return the state of the driver with these queries, or with all."""
        active = self._check.queries.values() if queries is None else queries
        runs = {item.query: item.run for item in active if not item.problem}
        return DriverState(
            executors=self._table.executors.keys(),
            placement=self._table.placement,
            last_ran=self._table.last_ran,
            runs=runs,
            known_stages={
                (query, stage)
                for query, run in runs.items()
                for stage in self._stages.operators_of_run(run, self._table.stages.get(query, ()))
            },
            batches=self._table.last_batch,
            quiet={query for query in runs if self._table.is_quiet(query)},
            unusable=self._table.executors.keys() - self._usable_executors().keys(),
            snapshot_lag=self._snapshot_lag.unit_lags(self._reconciler.units_up_next, runs),
        )

    def _add_own_moves(self, query: ActiveQuery) -> None:
        """Add the link's own moves for a query that is new, restarted, or has lost an executor."""
        table, run = self._table, query.run
        if query.problem or not operator_placement(query, table, self._stages):
            return
        stages = self._stages.operators_of_run(run, table.stages.get(query.query, ()))
        own = self._initial_placement.request_moves(
            query.query, run, stages, table.placement, self._reconciler.moving, committed=run in table.committed
        )
        if own is not None:
            self._journal(self._reconciler.add_own_moves(own, time.time()))

    # -- the report --

    def _report(self) -> LinkReport:
        reconciler, table, stages, lag = self._reconciler, self._table, self._stages, self._snapshot_lag
        orders = (self._orders.epoch, self._orders.sender) if self._orders is not None else (0, "")
        epoch, leaders = highest_epoch((reconciler.epoch, reconciler.leader), orders)
        return LinkReport(
            name=self.adapter.name,
            spark_version=self.adapter.version,
            attached=self._attached,
            executors=sorted(self._table.executors.values(), key=lambda item: item.executor),
            queries=[query_state(query, table, stages, lag) for query in self._check.queries.values()],
            moves=[move.view() for move in reconciler.reported_moves],
            decision=reconciler.decision,
            accepted_epoch=epoch,
            accepted_leaders=leaders,
            failed_tasks=self._table.failed_tasks,
            missed=reconciler.missed,
            landed=reconciler.landed,
            abandoned=reconciler.abandoned,
            drifted_partitions=self._drifted,
            initial_placements=self._initial_placement.start_reports(self._check.queries),
            standing_orders=encode(self._orders).decode() if self._orders is not None else "",
            environment=self._environment,
            releasing_executors=sorted(
                (self._check.releasing & self._table.executors.keys()).union(self._releaser.releasing)
            ),
            rejected_messages=self._rejected + self._mailbox.rejected_messages,
            problems=problem_sentences(
                [*self._problems, self._releaser.problem, self._mailbox.problem],
                garbage=self._garbage,
                lost_events=self._feed.dropped,
                healed=self._check.gaps.healed,
                dropped=self._mailbox.dropped,
            ),
        )

    def closing_steps(self) -> list[Callable[[], object]]:
        """Return what takes everything out of Spark, in order."""
        return [
            self.adapter.stop_watching_starts,
            self._releaser.restore_target,
            self.adapter.locality_wait.restore,
            self._feed.close,
            self._log_transitions,
            lambda: self._mailbox.post_report(self._report(), set()),
            lambda: self._mailbox.stop(timeout=3 * self._settings.redis.timeout),
            self._start_watcher.join,
            self.adapter.close,
        ]
