"""`attach`: the observing and reconciling loop inside a Spark driver.

One thread reads Spark's event stream, folds it into the task table, and at every quiet moment of a query steers what
the reconciler says is due. A second one, the courier, talks to Redis. Whatever fails in here, the queries go on.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import structlog

from rechannel.conf.settings import Settings, load
from rechannel.migration.link import compatibility
from rechannel.migration.link.courier import Courier, traced
from rechannel.migration.link.event_stream import EventStream
from rechannel.migration.link.journal import Journal
from rechannel.migration.link.observed import Limits, Observed
from rechannel.migration.link.reconciler import Reconciler
from rechannel.migration.link.release import Releases, scene
from rechannel.migration.link.report import KnownStage, environment, operators_placed, problems, query_state, unlike
from rechannel.migration.link.snapshots import Snapshots
from rechannel.migration.link.spark_adapter import ActiveQuery, DriverGoneError, LinkError, SparkAdapter, StoreId
from rechannel.migration.link.starts import Starts
from rechannel.migration.moves import Move, MoveState
from rechannel.monitors import events, tasks
from rechannel.wire.messages import (
    Drain,
    Envelope,
    ExecutorInfo,
    LinkReport,
    MessageError,
    MoveTransition,
    StandingOrders,
    encode,
)
from rechannel.wire.signing import Verifier
from rechannel.wire.store import Author

_LOG = structlog.get_logger("rechannel.link")
_REFRESH = 5.0  # seconds between two looks at the session's list of queries
_READ_BACKS = 3  # times a steer is read back while its query stays quiet
_READ_BACK_EVERY = 0.02  # seconds
_LEARN_TRIES = 20  # batches in which a stage's plan is looked up at once; after that in every twentieth
_SURE_TRIES = 3  # batches: a job may run a part of a stage's partitions only
_FAILURES = 20  # turns in a row that may fail before the link gives up
_MAINTENANCE = "spark.sql.streaming.stateStore.maintenanceInterval"

_links: dict[str, Link] = {}
_links_lock = threading.Lock()


def attach(spark: Any, settings: Settings | None = None, *, strict: bool = False) -> Link:
    """Join this application's streaming queries to Rechannel.

    ``spark`` is a classic SparkSession, ``settings`` those of the file that ``RECHANNEL_CONFIG`` names unless given.
    Never makes a query fail: where attaching is not possible, the returned link is inactive and its ``problem`` says
    why; with ``strict`` the error is raised instead. Attaching twice returns the same link.
    """
    link = Link()
    try:
        settings = load() if settings is None else settings
        adapter = SparkAdapter(spark)
        with _links_lock:
            known = _links.get(adapter.application)
            if known is not None and known.active:
                return known
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
        try:
            self._prepare(adapter, settings)
        except BaseException:
            # Half attached, Spark would write a stream that nobody reads and deletes.
            adapter.stop_event_stream()
            adapter.stop_watching_starts()
            if hasattr(self, "_directory"):
                shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self._courier.start()
        self._thread = threading.Thread(target=self._run, name="rechannel-link", daemon=True)
        self._thread.start()
        # A script that ends without a word leaves nothing behind either.
        atexit.register(self.detach)
        _LOG.info("attached", application=adapter.application, spark=adapter.version)
        for item in compatibility.advice(adapter.setting):
            _LOG.info("a setting of Spark is worth a change", sentence=item.sentence)

    def _prepare(self, adapter: SparkAdapter, settings: Settings) -> None:
        self._adapter = adapter
        self._settings = settings
        given = settings.link.directory
        if given:
            Path(given).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = Path(tempfile.mkdtemp(prefix="rechannel-", dir=given or None))
        self._table = tasks.TaskTable()
        self._stages: dict[tuple[str, int], KnownStage] = {}  # (run, stage)
        self._queries: dict[str, ActiveQuery] = {}
        self._read_backs: dict[str, tuple[int, float]] = {}
        self._lines: deque[bytes] = deque()
        self._tries: dict[tuple[str, int], int] = {}
        self._unlike: dict[tuple[str, int], str] = {}  # stages whose tasks are not their partitions, and how so
        self._learning: set[tuple[str, int]] = set()  # stages whose plan is looked for
        self._orders: Envelope | None = None
        self._drains: dict[str, Drain] = {}  # by node
        self._retiring: set[str] = set()  # executors that Spark offers no task any more
        self._drifted = self._garbage = self._rejected = 0
        self._attached, self._next_refresh, self._next_report, self._next_tick = time.time(), 0.0, 0.0, 0.0
        maintenance = compatibility.seconds(adapter.setting(_MAINTENANCE, "60s")) or 60.0
        self._reconciler = Reconciler(Limits.of(settings, maintenance))
        self._environment = environment(adapter.setting)
        self._problems = compatibility.sentences(adapter.version, adapter.setting)
        verifier = Verifier.from_file(named) if (named := settings.signing.public_key_file) else None
        if verifier is None:
            self._problems.append("signing.public_key_file is not set: this link reports but obeys nobody")
        author = Author(settings.cluster.name, f"link@{adapter.application}")
        self._courier = Courier(settings.redis, author, adapter.application, verifier)
        self._starts = Starts(adapter, self._may_be_given, lambda: self._drains, self._courier.recall)
        dynamic, ends = (compatibility.enabled(adapter.setting, what) for what in ("dynamicAllocation", "decommission"))
        self._releases = Releases(adapter, dynamic=dynamic, ends_by_itself=ends)
        self._snapshots = Snapshots(adapter.latest_snapshot, self._table.committed, supported=adapter.tells_snapshots)
        # The stream starts before the list of executors is read: an executor added in between is seen twice, not never.
        adapter.start_event_stream(self._directory, settings.link.event_log_bytes)
        self._stream = EventStream(self._directory)
        self._table.executors.update({item.executor: item for item in adapter.executors()})
        self._journal = Journal(self._directory / "journal.jsonl")
        self._courier.fetch_orders()
        self._take_orders()
        adapter.watch_starts(self._starts.started)

    # -- the loop --

    def _run(self) -> None:
        failures = 0
        try:
            while not self._stop.wait(self._pause()):
                try:
                    self._turn()
                    failures = 0
                except DriverGoneError as error:
                    self.problem = self.problem or f"the driver is gone: {error}"
                    _LOG.info("the driver is gone", error=str(error))
                    return
                except Exception as error:  # noqa: BLE001  the user's query must never notice; the brake is below
                    failures += 1
                    self.failures += 1
                    _LOG.warning("a turn failed", error=str(error), in_a_row=failures, **traced(failures == 1))
                    if failures >= _FAILURES:
                        self.problem = f"gave up after {failures} failed turns: {error}"
                        _LOG.error("link gives up; queries run on as without Rechannel", error=str(error))
                        return
                    self._stop.wait(0.05 * failures)
                if self._table.ended:
                    return
        finally:
            self._finish()

    def _pause(self) -> float:
        limits = self._settings.link
        # A plan has to be read before the next batch replaces it, a steer said before the next batch begins.
        return limits.poll_moving if self._reconciler.waiting or self._learning else limits.poll

    def _turn(self) -> None:
        now = time.time()
        self._catch_up()
        self._mail(now)
        for query in list(self._queries):
            self._at_boundary(query)
        if now >= self._next_refresh:
            self._refresh(now)
        if now >= self._next_tick:
            self._next_tick = now + 1.0
            self._write(self._reconciler.tick(self._observed(), now))
        if (self._drains or self._releases.under_way) and not self._reconciler.paused:
            self._releases.turn(scene(self._table, self._queries, self._drains, self._reconciler.moves), now)
        self._snapshots.turn(self._stages, now, self._reconciler.unsteered)
        if now >= self._next_report:
            self._next_report = now + self._settings.link.report
            nodes = {item.host for item in self._table.executors.values()}
            self._courier.post_report(self._report(), nodes)
            known = {move.wanted.move for move in self._reconciler.moves}
            self._read_backs = {name: value for name, value in self._read_backs.items() if name in known}

    def _catch_up(self) -> None:
        """Fold in all that Spark has written by now: only then is what looks quiet known to be quiet.

        A line leaves the queue before it is handled, so one that fails costs itself alone.
        """
        while True:
            while self._lines:
                self._event(self._lines.popleft(), time.time())
            self._lines.extend(self._stream.read())
            if not self._lines:
                return

    def _event(self, line: bytes, now: float) -> None:
        try:
            event = events.parse(line)
        except events.EventError:
            self._garbage += 1
            return
        if event is None:
            return
        for notice in self._table.add(event):
            match notice:
                case tasks.StageSeen():
                    self._try_to_learn(notice)
                case tasks.Relocated():
                    self._relocated(notice)
                case tasks.BatchDone():
                    self._courier.post_batch(notice.report, notice.run)
                    report, observed, took = notice.report, self._observed(), notice.report.seconds
                    self._write(self._reconciler.batch_done(report.query, report.batch, observed, now, took))
                    self._remember(report.query, report.batch)
                case tasks.QueryBusy():
                    known = self._queries.get(notice.query)
                    if known is None or known.run != notice.run:
                        self._next_refresh = 0.0
                case events.ExecutorRemoved():
                    self._starts.lost(notice.executor, self._table.placement)
                    self._write(self._reconciler.executor_gone(notice.executor, now))
                case events.QueryTerminated():
                    self._starts.ended(notice.query, notice.run)
                    self._queries.pop(notice.query, None)
                    for key in [key for key in self._stages if key[0] == notice.run]:
                        del self._stages[key]
                    self._learning = {key for key in self._learning if key[0] != notice.run}
                    self._unlike = {key: text for key, text in self._unlike.items() if key[0] != notice.run}
                    self._write(self._reconciler.run_ended(notice.query, notice.run, now))

    def _relocated(self, notice: tasks.Relocated) -> None:
        """Count a partition that Spark ran elsewhere though its executor lives and nobody asked."""
        asked = self._reconciler.asked_for(notice.query, notice.stage, notice.partition, notice.after)
        self._drifted += notice.before in self._may_hold() and not asked

    def _remember(self, query: str, batch: int) -> None:
        if (known := self._queries.get(query)) is None:
            return
        placed = operators_placed(known, self._table, self._stages)
        last = self._starts.ran(query, known.name, batch, placed, self._table.executors)
        if last is not None:
            self._courier.post_placement(last)

    def _may_be_given(self) -> dict[str, ExecutorInfo] | None:
        """Executors that may be given partitions by the link itself; None while it may begin nothing."""
        return None if self._reconciler.paused or not self._settings.link.spread else self._may_hold()

    def _may_hold(self) -> dict[str, ExecutorInfo]:
        """Executors that may hold partitions: on no drained node, and not about to leave."""
        leaving = self._retiring.union(self._releases.cordoned)
        return {
            name: info
            for name, info in dict(self._table.executors).items()
            if name not in leaving and info.host not in self._drains
        }

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
                self._write(self._reconciler.accept(desired, self._observed(), now))
            except MessageError as error:
                self._rejected += 1
                _LOG.warning("desired placement refused", error=str(error))
        for store in self._courier.take_closed():
            for (run, ordinal), stage in self._stages.items():
                if run != store.run or all(item.operator != store.operator for item, _ in stage.operators):
                    continue
                query = next((item.query for item in self._queries.values() if item.run == run), "")
                stores = [(item.operator, name) for item, names in stage.operators for name in names]
                self._write(self._reconciler.closed(store, stores, ordinal, query, now))

    def _refresh(self, now: float) -> None:
        self._next_refresh = now + _REFRESH
        self._queries = {item.query: item for item in self._adapter.queries()}
        self._retiring = self._adapter.retiring()
        for query in self._queries.values():
            if query.idle and self._table.quiet(query.query) is None:
                self._table.assume_quiet(query.query)

    def _try_to_learn(self, seen: tasks.StageSeen) -> None:
        key = (seen.run, seen.stage)
        if key in self._stages:
            return
        tries = self._tries[key] = self._tries.get(key, 0) + 1
        self._learning.discard(key)
        if tries > _LEARN_TRIES and tries % _LEARN_TRIES:
            return
        try:
            self._learn(seen)
        except DriverGoneError:
            raise
        except LinkError as error:
            _LOG.warning("a stage's plan could not be read; a later batch is a new try", error=str(error))
        if key not in self._stages and tries < _LEARN_TRIES:
            self._learning.add(key)

    def _learn(self, seen: tasks.StageSeen) -> None:
        """Tie a finished stage to its operators: their SQL metrics have the ids that the stage reported."""
        found = [item for item in self._adapter.operators(seen.run) if item.metrics & seen.accumulators]
        # An empty answer means the plan was replaced by the next batch's in between; the next batch is a new try.
        operators = [(item, self._adapter.store_names(item.checkpoint, item.operator)) for item in found]
        if operators and all(names and item.partitions == seen.partitions for item, names in operators):
            self._stages[seen.run, seen.stage] = KnownStage(seen.partitions, operators)
            self._unlike.pop((seen.run, seen.stage), None)
        elif operators and all(names for _, names in operators) and self._tries[seen.run, seen.stage] >= _SURE_TRIES:
            self._unlike[seen.run, seen.stage] = unlike(seen, operators)

    # -- steering --

    def _observed(self) -> Observed:
        runs = {item.query: item.run for item in self._queries.values() if not item.problem}
        return Observed(
            executors=self._table.executors.keys(),
            placement=self._table.placement,
            ran=self._table.ran,
            runs=runs,
            stores={(query, stage) for query, run in runs.items() for own, stage in self._stages if own == run},
            batches=self._table.last_batch,
            quiet={query for query in runs if self._table.quiet(query)},
            closed=self._table.executors.keys() - self._may_hold().keys(),
            replay=self._snapshots.replay(self._reconciler.unsteered, runs),
        )

    def _at_boundary(self, query: str) -> None:
        if not self._table.quiet(query):
            return
        self._see_to_start(query)
        lines, due = self._reconciler.due(query, observed := self._observed(), time.time())
        self._write(lines)
        for move in due:
            # Each move takes some milliseconds, and the next batch may have begun meanwhile: then the rest waits.
            self._catch_up()
            if not self._table.quiet(query):
                return
            now = time.time()
            if not self._write(self._reconciler.steer(move, self._observed(), now)):
                self._reconciler.take_back(move)
                return
            self._read_backs[move.wanted.move] = (0, now)
            self._tell(move)
        # A task that outlived its stage (a speculative copy, say) may have overwritten the steer: look again.
        for move in self._reconciler.steered_now(query, observed, time.time()):
            now = time.time()
            count, at = self._read_backs.get(move.wanted.move, (_READ_BACKS, 0.0))
            if count < _READ_BACKS and now - at >= _READ_BACK_EVERY and self._table.quiet(query):
                self._read_backs[move.wanted.move] = (count + 1, now)
                try:
                    if not self._reads_back(move):
                        self._tell(move)
                except DriverGoneError:
                    raise
                except LinkError as error:
                    _LOG.warning("a steer could not be read back", move=move.wanted.move, error=str(error))

    def _see_to_start(self, query: str) -> None:
        """Add the moves of our own that a new, a restarted or a bereft query needs."""
        if (
            (known := self._queries.get(query)) is None
            or known.problem
            or not operators_placed(known, self._table, self._stages)
        ):
            return
        stages = {
            ordinal: [item.operator for item, _ in stage.operators]
            for (run, ordinal), stage in self._stages.items()
            if run == known.run
        }
        wish = self._starts.due(query, known.run, stages, self._table.placement, self._reconciler.moving)
        if wish is not None:
            decision = wish.moves[0].move.rpartition(".")[0]
            self._write(self._reconciler.add(decision, wish.moves, known.run, wish.why, time.time()))

    def _stores(self, move: Move) -> list[StoreId]:
        stage = self._stages.get((move.run, move.wanted.stage))
        return [
            StoreId(item.checkpoint, item.run, item.operator, move.wanted.partition, name)
            for item, names in (stage.operators if stage else [])
            for name in names
        ]

    def _tell(self, move: Move) -> None:
        if (target := self._table.executors.get(move.wanted.target)) is None:
            return  # gone since; the reconciler hears of it by the event
        try:
            for store in self._stores(move):
                self._adapter.steer(store, target.host, target.executor)
            if not self._reads_back(move):
                _LOG.warning("a steer did not read back", move=move.wanted.move, target=target.executor)
        except DriverGoneError:
            raise
        except LinkError as error:
            _LOG.warning("a steer failed; the next boundary is a new try", move=move.wanted.move, error=str(error))

    def _reads_back(self, move: Move) -> bool:
        return all(self._adapter.location(store) == move.wanted.target for store in self._stores(move))

    def _write(self, lines: list[MoveTransition]) -> bool:
        if not lines:
            return True
        kept = self._journal.write(lines)
        if not kept:
            _LOG.error("the journal cannot be written; nothing is steered", path=str(self._journal.path))
        if not kept and any(line.after == MoveState.STEERED for line in lines):
            return False  # the step is not taken, so nobody is told that it was
        self._courier.post_journal(lines)
        for line in lines:
            _LOG.info("move", move=line.move, state=line.after, reason=line.reason, partition=line.partition)
        return kept

    # -- reporting --

    def _report(self) -> LinkReport:
        reconciler = self._reconciler
        known = self._table, self._stages, self._snapshots.of, self._unlike
        return LinkReport(
            name=self._adapter.name,
            spark_version=self._adapter.version,
            attached=self._attached,
            executors=sorted(self._table.executors.values(), key=lambda item: item.executor),
            queries=[query_state(query, *known) for query in self._queries.values()],
            moves=[move.view() for move in reconciler.moves],
            decision=reconciler.decision,
            accepted_epoch=max(reconciler.epoch, self._orders.epoch if self._orders is not None else 0),
            failed_tasks=self._table.failed_tasks,
            missed=reconciler.missed,
            landed=reconciler.landed,
            abandoned=reconciler.abandoned,
            drifted=self._drifted,
            starts=self._starts.words(self._queries),
            orders=encode(self._orders).decode() if self._orders is not None else "",
            environment=self._environment,
            releasing=sorted((self._retiring & self._table.executors.keys()).union(self._releases.cordoned)),
            rejected_messages=self._rejected + self._courier.refused,
            problems=problems(
                self._problems,
                garbage=self._garbage,
                lost=self._journal.lost,
                where=str(self._journal.path.parent),
                dropped=self._courier.dropped,
                releasing=self._releases.problem,
            ),
        )

    def _finish(self) -> None:
        try:
            self._adapter.stop_event_stream()
            self._adapter.stop_watching_starts()
            self._releases.lift()
        except LinkError:
            _LOG.debug("the driver was gone before the listeners could be taken out")
        finally:
            self._courier.post_report(self._report(), set())
            self._courier.stop(timeout=3 * self._settings.redis.timeout)
            self._stream.close()
            self._journal.close()
            shutil.rmtree(self._directory, ignore_errors=True)
            atexit.unregister(self.detach)
            _LOG.info("detached", application=self._adapter.application)
