"""A clock to turn by hand, a Store in memory that keeps the real one's promises, and builders of messages."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rechannel.conf.settings import ControllerSettings, GateSettings, RescheduleSettings, Settings
from rechannel.daemon.control.application import Application
from rechannel.daemon.control.commands import execute
from rechannel.daemon.control.controller import Collaborators, Controller
from rechannel.daemon.jobs.clock import Clock
from rechannel.wire import keys
from rechannel.wire.codes import Trigger
from rechannel.wire.commands import Command
from rechannel.wire.commands import encode as encode_command
from rechannel.wire.envelope import Envelope, EnvelopeFactory, MessageError, decode, encode
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.keys import KeyRule, Keys
from rechannel.wire.measurements import AgentWindow, BatchReport, ExecutorUsage, StageRun, StreamRow, TaskRow
from rechannel.wire.messages import (
    AnyBody,
    ControllerState,
    Decision,
    DesiredMove,
    DesiredPlacement,
    ExecutorInfo,
    LinkReport,
    MoveTransition,
    MoveView,
    Operator,
    QueryState,
    Reply,
    Request,
    StatefulStage,
)
from rechannel.wire.redis.capacity import StreamTrimmer
from rechannel.wire.redis.errors import StoreDeposedError, StoreUnavailableError
from rechannel.wire.redis.lua_scripts import EPOCH_LEAP
from rechannel.wire.redis.store import Lease, Page, QueuedRequest
from rechannel.wire.signing import Signer, Verifier

NOW = 1_700_000_000.0
APP = "app-1"
QUERY = "q1"


class FakeClock:
    """Stands still until told to go on."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeFenced:
    """A leader's view of a FakeStore: it writes only while the lease is the one that is held."""

    def __init__(self, store: FakeStore, held: Callable[[], Lease]) -> None:
        self._store = store
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _guard(self) -> Lease:
        held = self._held()
        self._store._there()
        if self._store.owner() != held:
            raise StoreDeposedError(
                f"the lease of epoch {held.epoch} is over, or another's: nothing was written (test)"
            )
        return held

    def put(self, rule: KeyRule, name: str, envelope: Envelope, ttl: float | None = None) -> None:
        self._guard()
        self._store.put(rule, name, envelope, ttl)

    def delete(self, rule: KeyRule, name: str = "") -> None:
        self._guard()
        self._store.delete(rule, name)

    def append(self, rule: KeyRule, name: str, *envelopes: Envelope) -> None:
        self._guard()
        self._store.append(rule, name, *envelopes)

    def set_paused(self, paused: bool) -> None:
        self._guard()
        self._store.set_paused(paused)

    def claim(self, request: str, seconds: float) -> Lease:
        key = self.keys(keys.CLAIM, request)
        held = self._guard()
        result, until = self._store.claims.get(key, (held, 0.0))
        if until <= self._store.clock():
            result = held
            self._store.claims[key] = (held, self._store.clock() + seconds)
        return result


class FakeStore:
    """Store without a server. Messages go through the real encoding.

    ``away`` makes every call fail, ``unsendable`` every putting and appending of its rule.
    """

    def __init__(self, clock: FakeClock, cluster: str = "default") -> None:
        self.keys = Keys(cluster)
        self.cluster = cluster
        self.clock = clock
        self.rejected = 0
        self.away = False
        self.unsendable: KeyRule | None = None
        self.writes: list[str] = []
        self.reads: list[tuple[dict[str, str], set[str]]] = []  # of many streams at once: after what, and the doubtful
        self.empty()

    def empty(self) -> None:
        """What an emptied Redis looks like; stream ids go on with time."""
        self.strings: dict[str, tuple[bytes, float]] = {}
        self.streams: dict[str, list[tuple[tuple[int, int], bytes]]] = defaultdict(list)
        self.trimming: dict[str, StreamTrimmer] = {}
        self.claims: dict[str, tuple[Lease, float]] = {}
        self.apps: dict[str, float] = {}
        self._epoch = 0
        self._leap = False
        self._lease: tuple[str, int, float] | None = None
        self._paused = False

    def _there(self) -> None:
        if self.away:
            raise StoreUnavailableError("Redis at nowhere cannot be reached (test)")

    def check(self) -> str:
        self._there()
        return "8.0.0"

    def close(self) -> None:
        self._there()

    def fenced(self, held: Callable[[], Lease]) -> FakeFenced:
        return FakeFenced(self, held)

    def fail_over(self, *, known_epoch: int) -> None:
        """A replica takes over, to which the newest epochs had not come yet, and no lease."""
        self._leap, self._epoch, self._lease = True, known_epoch, None

    def owner(self) -> Lease | None:
        """Who holds the lease at this moment."""
        if self._lease is None or self._lease[2] <= self.clock():
            return None
        return Lease(self._lease[0], self._lease[1])

    def put(self, rule: KeyRule, name: str, envelope: Envelope, ttl: float | None = None) -> None:
        if rule is self.unsendable:
            raise StoreUnavailableError("gone")
        self._there()
        self.writes.append(rule.pattern)
        seconds = rule.ttl if ttl is None else ttl
        self.strings[self.keys(rule, name)] = (encode(envelope), self.clock() + (seconds or 1e12))

    def get(self, rule: KeyRule, name: str = "") -> Envelope | None:
        self._there()
        data, until = self.strings.get(self.keys(rule, name), (None, 0.0))
        return None if data is None or until <= self.clock() else self._decoded(data)

    def delete(self, rule: KeyRule, name: str = "") -> None:
        self._there()
        self.strings.pop(self.keys(rule, name), None)

    def append(self, rule: KeyRule, name: str, *envelopes: Envelope, size: int | None = None) -> None:
        if rule is self.unsendable:
            raise StoreUnavailableError("gone")
        self._there()
        trimming = self.trimming.setdefault(self.keys(rule, name), StreamTrimmer(rule.bound))
        for envelope in envelopes:
            data = encode(envelope)
            count = trimming.add(len(data), rule.size if size is None else min(size, rule.size))
            self.append_raw(rule, name, data)
            del self.streams[self.keys(rule, name)][:-count]

    def append_raw(self, rule: KeyRule, name: str, data: bytes) -> None:
        self.writes.append(rule.pattern)
        entries = self.streams[self.keys(rule, name)]
        milliseconds = int(self.clock() * 1000)
        number = entries[-1][0][1] + 1 if entries and entries[-1][0][0] == milliseconds else 0
        entries.append(((milliseconds, number), data))
        del entries[: -rule.bound]

    def read(self, rule: KeyRule, name: str, after: str, count: int = 1000) -> tuple[str, list[Envelope]]:
        result = self._after(rule, name, after, count)
        last = f"{result[-1][0][0]}-{result[-1][0][1]}" if result else after
        return last, self._messages(result)

    def read_each(
        self, rule: KeyRule, after: Mapping[str, str], count: int, doubtful: Collection[str] = ()
    ) -> dict[str, Page]:
        self.reads.append((dict(after), set(doubtful)))
        result = {}
        for name, number in after.items():
            entries = self._after(rule, name, number, count)
            last = f"{entries[-1][0][0]}-{entries[-1][0][1]}" if entries else number
            result[name] = Page(last, self._messages(entries), sum(len(data) for _, data in entries))
        return result

    def id_since(self, seconds: float) -> str:
        self._there()
        return f"{int((self.clock() - seconds) * 1000)}-0"

    def _after(self, rule: KeyRule, name: str, after: str, count: int) -> list[tuple[tuple[int, int], bytes]]:
        self._there()
        since = _number(after)
        return [entry for entry in self.streams[self.keys(rule, name)] if entry[0] > since or after == "0"][:count]

    def read_requests(self, rule: KeyRule, name: str, after: str, count: int = 1000) -> tuple[str, list[QueuedRequest]]:
        result = self._after(rule, name, after, count)
        last = f"{result[-1][0][0]}-{result[-1][0][1]}" if result else after
        return last, [
            QueuedRequest(envelope, max(0.0, self.clock() - number[0] / 1000))
            for number, data in result
            if (envelope := self._decoded(data)) is not None
        ]

    def last(self, rule: KeyRule, name: str, count: int) -> list[Envelope]:
        self._there()
        return self._messages(self.streams[self.keys(rule, name)][-count:])

    def last_id(self, rule: KeyRule, name: str = "") -> str:
        self._there()
        entries = self.streams[self.keys(rule, name)]
        return f"{entries[-1][0][0]}-{entries[-1][0][1]}" if entries else "0"

    def register_application(self, application: str, now: float) -> None:
        self._there()
        self.apps[application] = now

    def applications(self, since: float) -> list[str]:
        self._there()
        return sorted(name for name, seen in self.apps.items() if seen >= since)

    def acquire_lease(self, holder: str, seconds: float, least_epoch: int) -> Lease:
        self._there()
        owner = self.owner()
        if owner is not None and owner.holder != holder:
            return owner
        if owner is None or self._leap or owner.epoch < max(least_epoch, self._epoch):
            self._epoch = max(self._epoch, least_epoch) + (EPOCH_LEAP if self._leap else 1)
            self._leap = False
            owner = Lease(holder, self._epoch)
        self._lease = (holder, owner.epoch, self.clock() + seconds)
        return owner

    def release_lease(self, holder: str) -> None:
        self._there()
        if self._lease is not None and self._lease[0] == holder:
            self._lease = None

    def set_paused(self, paused: bool) -> None:
        self._there()
        self._paused = paused

    def is_paused(self) -> bool:
        self._there()
        return self._paused

    def _messages(self, entries: Sequence[tuple[tuple[int, int], bytes]]) -> list[Envelope]:
        return [envelope for _, data in entries if (envelope := self._decoded(data)) is not None]

    def _decoded(self, data: bytes) -> Envelope | None:
        try:
            return decode(data, cluster=self.cluster)
        except MessageError:
            self.rejected += 1
            return None


def _number(entry: str) -> tuple[int, int]:
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


def settings(mode: str = "observe", **reschedule: object) -> Settings:
    return Settings(
        reschedule=RescheduleSettings(mode=mode, **reschedule),  # type: ignore[arg-type]
        controller=ControllerSettings(name="c"),
    )


def executors(count: int = 4, cores: int = 1) -> list[ExecutorInfo]:
    return [ExecutorInfo(executor=str(e), host=f"127.0.0.{e + 2}", cores=cores, added=NOW) for e in range(count)]


def query(
    placement: Sequence[str], name: str = QUERY, *, run: str = "run-1", problem: str = "", active: bool = True
) -> QueryState:
    operators = [Operator(operator=0, name="aggregate", stores=["default"])]
    stage = StatefulStage(stage=0, partitions=len(placement), operators=operators, placement=list(placement))
    return QueryState(
        query=name, run=run, name=f"name-of-{name}", batch=9, active=active, stages=[stage], problem=problem
    )


def report(
    queries: Sequence[QueryState],
    *,
    count: int = 4,
    moves: Sequence[MoveView] = (),
    decision: str = "",
    accepted_epoch: int = 0,
    accepted_leaders: Sequence[str] = (),
) -> LinkReport:
    return LinkReport(
        name="job",
        spark_version="4.3.0",
        attached=NOW,
        executors=executors(count),
        queries=list(queries),
        moves=list(moves),
        decision=decision,
        accepted_epoch=accepted_epoch,
        accepted_leaders=list(accepted_leaders),
    )


def task(
    number: int,
    partition: int,
    executor: str,
    *,
    run: float = 1.0,
    wait: float = 0.0,
    rows: int = 100,
    start: float = NOW,
) -> TaskRow:
    return TaskRow(
        task=number,
        partition=partition,
        executor=executor,
        launch=start,
        finish=start + run,
        run=run,
        cpu=run,
        fetch_wait=wait,
        rows_in=rows,
        rows_out=rows,
        bytes_local=0,
        bytes_remote=0,
        bytes_out=0,
        state_rows=rows,
        state_bytes=1000,
        commit=0.01,
    )


def batch(
    number: int,
    placement: Sequence[str],
    busy: Mapping[int, float] | None = None,
    *,
    name: str = QUERY,
    end: float = NOW,
    period: float = 5.0,
    count: int = 4,
) -> BatchReport:
    """One of a row of batches, number 9 ending at ``end``: a source task per executor, then the stateful stage."""
    start = end - period + (number - 9) * period
    first = number * 1000
    source = [task(first + e, e, str(e), run=0.1, start=start) for e in range(count)]
    state = [
        task(first + 100 + p, p, where, run=(busy or {}).get(p, 0.1), rows=50, start=start + 0.1)
        for p, where in enumerate(placement)
    ]
    stages = [
        StageRun(spark_stage=2 * number, parents=[], stateful=-1, tasks=source),
        StageRun(spark_stage=2 * number + 1, parents=[2 * number], stateful=0, tasks=state),
    ]
    return BatchReport(query=name, batch=number, start=start, end=start + period, input_rows=400, stages=stages)


def a_decision(**fields: Any) -> Decision:
    """Return a decision by timeout that plans nothing, but for these fields."""
    usual = {"decision": "d", "at": NOW, "trigger": "timeout", "user": "", "policy": "adaptive"}
    return Decision(**{**usual, "outcome": "planned", "reason": "ok", "sentence": "", **fields})


def transition(move: DesiredMove, *, decision: str, batch: int = -1, at: float = NOW, **how: str) -> MoveTransition:
    """Return a line of the link's journal; ``how``: before, after and reason."""
    return MoveTransition(
        move=move.move,
        decision=decision,
        query=move.query,
        stage=move.stage,
        partition=move.partition,
        source=move.source,
        target=move.target,
        step=move.step,
        evidence="",
        batch=batch,
        at=at,
        **how,
    )


def window(
    e: int, *, end: float = NOW, application: str = APP, streams: Sequence[StreamRow] = (), seconds: float = 5.0
) -> AgentWindow:
    usage = ExecutorUsage(
        application=application,
        executor=str(e),
        host=f"127.0.0.{e + 2}",
        pid=100 + e,
        started=NOW - 100,
        cores=1,
        jvm_cpu=2.0,
        python_cpu=1.0,
        jvm_rss=2**28,
        python_rss=2**27,
        python_workers=1,
        samples=5,
    )
    return AgentWindow(
        node=f"127.0.0.{e + 2}",
        start=end - seconds,
        end=end,
        complete=1.0,
        cores=1,
        node_cpu=3.0,
        memory_total=2**33,
        memory_used=2**32,
        executors=[usage],
        streams=list(streams),
    )


class World:
    """The agents and one link of an application, as far as Redis sees them. Skewed unless told otherwise."""

    def __init__(self, store: FakeStore, clock: FakeClock, application: str = APP, where: str = "000000112233") -> None:
        self.store = store
        self.clock = clock
        self.application = application
        self.placement = list(where)
        self.queries: list[QueryState] | None = None
        self.moves: list[MoveView] = []
        self.decision = ""
        self.accepted_epoch = 0
        self.accepted_leaders: list[str] = []
        self.author = EnvelopeFactory("default", "test", clock)

    def _send(self, rule: KeyRule, name: str, body: AnyBody) -> None:
        envelope = self.author.envelope(body, ttl=60, application=self.application)
        if rule.kind == "string":
            self.store.put(rule, name, envelope)
        else:
            self.store.append(rule, name, envelope)

    def report(self) -> None:
        """The link's report of this moment."""
        queries = [query(self.placement)] if self.queries is None else self.queries
        body = report(
            queries,
            moves=self.moves,
            decision=self.decision,
            accepted_epoch=self.accepted_epoch,
            accepted_leaders=self.accepted_leaders,
        )
        self._send(keys.REPORT, self.application, body)
        self.store.register_application(self.application, self.clock())

    def measure(self, batches: int = 3) -> None:
        """Batches up to this moment, and a fresh window of every agent."""
        for number in range(10 - batches, 10):
            self._send(keys.BATCHES, self.application, batch(number, self.placement, end=self.clock()))
        for e in range(4):
            self._send(keys.WINDOWS, f"127.0.0.{e + 2}", window(e, end=self.clock(), application=self.application))

    def ready(self) -> None:
        """Everything a decision needs."""
        self.report()
        self.measure()

    def obey(self, state: str = "drained", *, only: int | None = None) -> None:
        """The link takes up what is desired, and its moves reach a state (the first ``only`` of them)."""
        result = self.store.get(keys.DESIRED, self.application)
        assert result is not None
        expected = result.body.moves
        self.decision, self.accepted_epoch = result.body.decision, result.epoch
        self.accepted_leaders = [result.sender]
        reached = len(expected) if only is None else only
        self.moves = [
            MoveView(
                move=move.move,
                query=move.query,
                stage=move.stage,
                partition=move.partition,
                source=move.source,
                target=move.target,
                step=move.step,
                state=state if number < reached else "planned",
            )
            for number, move in enumerate(expected)
        ]
        self.report()


KEY = Ed25519PrivateKey.generate()
SIGNER = Signer(KEY)
VERIFIER = Verifier(KEY.public_key())
# Most of a fake batch is overhead, so that moves gain a few percent of it, and its seconds are what a test wants.
GATE = GateSettings(move_cost=0.01, min_gain=0.02, max_residual=10.0)
CONFIG = dataclasses.replace(settings("apply"), gate=GATE)


def clocks(clock: FakeClock, cpu: Callable[[], float] = lambda: 0.0) -> Clock:
    """Clocks that all show the same time."""
    return Clock(wall=clock, steady=clock, monotonic=clock, cpu=cpu)


def controller(
    store: FakeStore,
    clock: FakeClock,
    config: Settings = CONFIG,
    name: str = "a",
    busy: Callable[[], float] = lambda: 0.0,
    count_answer: Callable[[str, int], None] = lambda _verb, _code: None,
    lead: bool = False,
) -> Controller:
    """Return a controller, which takes the lead if there is none and it is to ``lead``."""
    parts = Collaborators(store, SIGNER, clocks(clock, busy), name, count_answer=count_answer)  # type: ignore[arg-type]
    result = Controller(config, parts)
    if lead:
        result.run_leader_cycle()
    return result


def leading(world: World, config: Settings = CONFIG, name: str = "a") -> Controller:
    """Return a controller that leads over an application that is ready."""
    world.ready()
    return controller(world.store, world.clock, config, name, lead=True)


def cycle(leader: Controller, world: World | None = None, seconds: float = 0.0) -> str:
    """Run the leader's jobs of one interval, after some time in a world; returns what it follows."""
    if world is not None:
        go_on(world, seconds)
    leader.run_leader_cycle()
    return leader.follow()


def desired(store: FakeStore, application: str = APP) -> Envelope | None:
    return store.get(keys.DESIRED, application)


def state(store: FakeStore) -> ControllerState:
    result = store.get(keys.STATE)
    assert result is not None
    assert isinstance(result.body, ControllerState)
    return result.body


def published_placement(store: FakeStore, application: str = APP) -> DesiredPlacement:
    result = desired(store, application)
    assert result is not None
    VERIFIER.check(result)
    assert isinstance(result.body, DesiredPlacement)
    return result.body


def decisions(store: FakeStore) -> list[Decision]:
    return [envelope.body for envelope in store.last(keys.DECISIONS, "", 1000)]  # type: ignore[misc]


def go_on(world: World, seconds: float, leader: Controller | None = None) -> None:
    """Let time pass, and link and agents report again, to a leader too that renews its lease."""
    world.clock.sleep(seconds)
    world.ready()
    if leader is not None:
        leader.run_leader_cycle()


# -- deciding and ordering --


def app(leader: Controller, name: str = APP) -> Application:
    """Return the leader's state of an application."""
    return leader._cluster.application(name)


def decide(
    leader: Controller, application: str = APP, *, trigger: str = Trigger.OPERATOR, policy: str = "", **fields: Any
) -> Decision:
    """Have the leader decide, and with ``apply`` begin the migration."""
    with leader._lock:
        request = app(leader, application).new_request(Trigger(trigger))
        return app(leader, application).decide(dataclasses.replace(request, policy=policy or request.policy, **fields))


def order(leader: Controller, command: Command, *, user: str = "op", reason: str = "") -> Reply:
    """Have the leader carry out a command, without the way of a request through Redis."""
    with leader._lock:
        return execute(leader._cluster, Request(request="r", user=user, reason=reason, command=encode_command(command)))


def refuses(leader: Controller, command: Command, pattern: str) -> None:
    """Assert that an order is refused, or that there is nothing to do, with a sentence like this."""
    result = order(leader, command)
    assert result.code in (ExitCode.REFUSED, ExitCode.NOTHING)
    assert re.search(pattern, result.sentence)


def request(
    store: FakeStore,
    verb: str,
    *,
    ttl: float = 20,
    name: str = "r1",
    stream: KeyRule = keys.REQUESTS,
    **fields: Any,
) -> None:
    body = Request(request=name, user="root", reason="because", command={"verb": verb, **fields})
    store.append(stream, "", EnvelopeFactory("default", "cli", store.clock).envelope(body, ttl=ttl))


def reply(store: FakeStore, name: str = "r1") -> Reply | None:
    result = store.get(keys.REPLY, name)
    assert result is None or isinstance(result.body, Reply)
    return result.body if result is not None else None


def read_reply(store: FakeStore, name: str = "r1") -> Reply:
    """Return the reply of this id, which must be there."""
    message = reply(store, name)
    assert message is not None
    return message


def ask(leader: Controller, store: FakeStore, verb: str, **more: Any) -> Reply:
    """Send a request and return the leader's reply."""
    request(store, verb, **more)
    leader.answer_requests()
    return read_reply(store, more.get("name", "r1"))
