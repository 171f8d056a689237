"""Builders of messages, a world of agents and a link, and a controller over them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
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
from rechannel.wire.envelope import Envelope, EnvelopeFactory
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.keys import KeyRule
from rechannel.wire.measurements import AgentWindow, BatchReport, ExecutorUsage, MapOutput, StageRun, TaskRow
from rechannel.wire.messages import (
    AnyBody,
    ControllerState,
    Decision,
    DesiredMove,
    DesiredPlacement,
    ExecutorInfo,
    ExecutorLoad,
    LinkReport,
    MoveTransition,
    MoveView,
    Operator,
    QueryState,
    Reply,
    Request,
    StatefulStage,
)
from rechannel.wire.signing import Signer, Verifier
from unit.daemon.fake_store import NOW, FakeClock, FakeStore

APP = "app-1"
QUERY = "q1"


def settings(mode: str = "observe", **reschedule: object) -> Settings:
    return Settings(
        reschedule=RescheduleSettings(mode=mode, **reschedule),  # type: ignore[arg-type]
        controller=ControllerSettings(name="c"),
    )


def executors(count: int = 4) -> list[ExecutorInfo]:
    return [ExecutorInfo(executor=str(e), host=f"127.0.0.{e + 2}", cores=1, added=NOW) for e in range(count)]


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
        StageRun(spark_stage=2 * number, parents=[], stateful_stage=-1, tasks=source),
        StageRun(spark_stage=2 * number + 1, parents=[2 * number], stateful_stage=0, tasks=state),
    ]
    return BatchReport(query=name, batch=number, start=start, end=start + period, input_rows=400, stages=stages)


def executor_load(name: str) -> ExecutorLoad:
    """Return the load of an executor that keeps three partitions and is half busy."""
    rates = dict.fromkeys(["arrival_before", "arrival_after", "service_before"], 1.0)
    busy = dict.fromkeys(["utilization_before", "utilization_after"], 0.5)
    return ExecutorLoad(executor=name, node=name, partitions_before=3, partitions_after=3, **rates, **busy)


def unit_of(move: DesiredMove) -> dict[str, Any]:
    """Return the fields that a move has in reports and in the journal too."""
    return {name: getattr(move, name) for name in ("move", "query", "stage", "partition", "source", "target", "step")}


def transition(move: DesiredMove, *, decision: str, batch: int = -1, at: float = NOW, **how: str) -> MoveTransition:
    """Return a line of the link's journal; ``how``: before, after and reason."""
    return MoveTransition(**unit_of(move), decision=decision, evidence="", batch=batch, at=at, **how)


def window(
    e: int, *, end: float = NOW, application: str = APP, map_outputs: Sequence[MapOutput] = (), seconds: float = 5.0
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
        map_outputs=list(map_outputs),
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

    def measure(self, batches: int = 3, newest: int = 9) -> None:
        """Batches up to this moment, and a fresh window of every agent."""
        for number in range(newest + 1 - batches, newest + 1):
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
            MoveView(**unit_of(move), state=state if number < reached else "planned")
            for number, move in enumerate(expected)
        ]
        self.report()


KEY = Ed25519PrivateKey.generate()
SIGNER = Signer(KEY)
VERIFIER = Verifier(KEY.public_key())
# Most of a fake batch is overhead, so that moves gain a few percent of it, and its seconds are what a test wants.
GATE = GateSettings(min_gain=0.02, max_residual=10.0)
CONFIG = dataclasses.replace(settings("apply"), gate=GATE)


def ruled(mode: str = "apply", **rules: object) -> Settings:
    """Return `CONFIG` with these settings of `reschedule`."""
    return dataclasses.replace(CONFIG, reschedule=settings(mode, **rules).reschedule)


def controlled(**changes: object) -> Settings:
    """Return `CONFIG` with these settings of `controller`."""
    return dataclasses.replace(CONFIG, controller=dataclasses.replace(CONFIG.controller, **changes))


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
    user: str = "root",
    reason: str = "because",
    **fields: Any,
) -> None:
    body = Request(request=name, user=user, reason=reason, command={"verb": verb, **fields})
    store.append(stream, "", EnvelopeFactory("default", f"{user}@host", store.clock).envelope(body, ttl=ttl))


def read_reply(store: FakeStore, name: str = "r1") -> Reply:
    """Return the reply of this id, which must be there."""
    message = store.get(keys.REPLY, name)
    assert message is not None
    assert isinstance(message.body, Reply)
    return message.body


def ask(leader: Controller, store: FakeStore, verb: str, **more: Any) -> Reply:
    """Send a request and return the leader's reply; ``more``: as of `request`."""
    request(store, verb, **more)
    leader.answer_requests()
    return read_reply(store, more.get("name", "r1"))
