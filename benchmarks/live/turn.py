"""One turn of a variant through a situation: starting placement, event, decision, measurement."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.live.runs import model
from benchmarks.live.session import Session
from benchmarks.live.situations import Lengths, Situation, as_spark_would
from benchmarks.live.variants import Variant
from rechannel.wire.exit_codes import ExitCode
from testbed.stack import StackError

_PATIENCE = 120.0  # seconds for a decision to become possible
_SETTLE = 2  # batches after the last landing that do not count as what came of it
_SLOWED = 0.5  # speed of the node that becomes slow


def run_turn(session: Session, situation: Situation, lengths: Lengths, variant: Variant, seed: int) -> dict[str, Any]:
    """Run it and return when what happened; what was measured meanwhile is in the session's batches and samples.

    StackError where the cycle of the input was over before the end: nothing is measured then.
    """
    target = session.names[-1]
    session.hold()
    if situation.event == "join" and target in session.nodes.nodes:
        session.leave(target)
    begin(session, situation, seed)
    phase: dict[str, Any] = {"way": variant.name, "situation": situation.name, "seed": seed, "orders": []}
    session.wait_batches(_SETTLE)
    if situation.acts_before:
        if situation.in_input:  # it is to adapt to what is there before the event, not to the cycle before
            _await_place(session, 0, lengths)
        session.wait_batches(lengths.waiting)
        phase["orders"].append(act(session, variant))
        session.wait_batches(_SETTLE)
        if situation.in_input and _place(session, lengths) > lengths.event - lengths.before:
            raise StackError("the event's place in the cycle came before the way had adapted: make the cycle longer")
    if situation.in_input:
        _await_place(session, lengths.event - lengths.before, lengths)
    phase["before_from"] = time.time()
    session.wait_batches(lengths.before)
    if situation.in_input:
        _await_place(session, lengths.event, lengths)
    phase["event_at"] = time.time()
    _happen(session, situation, target)
    session.wait_batches(lengths.waiting)
    phase["placed"] = _counts(session)
    phase |= {"model": model(session.store, session.settings, session.application), "modeled_at": time.time()}
    phase["orders"].append(act(session, variant))
    session.wait_batches(_SETTLE)
    phase["moved_at"] = time.time()
    session.wait_batches(situation.rest)
    phase["after_from"] = time.time()
    phase["after_placed"] = _counts(session)
    session.wait_batches(lengths.after)
    phase["end"] = time.time()
    if situation.in_input and _place(session, lengths) < lengths.event:
        raise StackError("the input's cycle was over before the phase: make it longer")
    return phase


def begin(session: Session, situation: Situation, seed: int) -> None:
    """Bring every partition to where Spark's first batch might have put it; the same for every way."""
    executors = session.executors()
    names = [name for name in session.names[: situation.nodes] if name in executors]
    target = {}
    for number, query in enumerate(session.wait("the link knows the queries", session.queries)):
        stages = {stage.stage: len(stage.placement) for stage in query.stages}
        for (stage, partition), name in as_spark_would(names, stages, seed * 100 + number).items():
            target[query.query, stage, partition] = executors[name]
    session.place(target, "where every way begins")


def act(session: Session, variant: Variant) -> dict[str, Any]:
    """Have the way's policy decide and its moves land."""
    request = time.time()
    if not variant.policy:
        return {"asked": request, "moves": 0, "sentence": "nobody is asked"}
    arguments = ["rebalance", "--apply", "--policy", variant.policy, "--reason", "benchmark"]
    arguments += ["--force"] if variant.force else []
    while True:
        code, answer = session.ask(*arguments)
        if code != ExitCode.NOT_READY or time.time() > request + _PATIENCE:
            break
        session.wait_batches(1)
    sentence = str(answer.get("sentence") or answer.get("error") or "")
    decision = answer.get("decision")
    order: dict[str, Any] = {"asked": request, "answered": time.time(), "code": code, "sentence": sentence, "moves": 0}
    if not code and decision and decision.get("moves"):
        order |= {"moves": len(decision["moves"]), "decision": decision, **session.await_landed(decision)}
        order |= {"settled": time.time(), "journal": session.journal(decision["decision"])}
    return order


def _happen(session: Session, situation: Situation, target: str) -> None:
    if situation.event == "join":
        session.join(target)
    elif situation.event == "kill":
        session.kill_executor(target)
    elif situation.event == "slow":
        session.hold({target: _SLOWED})


def _counts(session: Session) -> dict[str, int]:
    """Number of partitions on each node."""
    names = {executor: name for name, executor in session.executors().items()}
    counts = dict.fromkeys(session.names, 0)
    for executor in session.placement().values():
        if executor in names:
            counts[names[executor]] += 1
    return counts


def _place(session: Session, lengths: Lengths) -> int:
    """Return where in the input's cycle the next batch is."""
    last = max((line["batch"] for line in session.poll()), default=-1)
    return int(last + 1) % lengths.cycle


def _await_place(session: Session, place: int, lengths: Lengths) -> None:
    """Wait for a place in the cycle, through to the next cycle if it is over in this one."""
    if _place(session, lengths) > place:
        session.wait("the next cycle", lambda: _place(session, lengths) <= place)
    session.wait(f"place {place} of the cycle", lambda: _place(session, lengths) >= place)
