"""Rechannel as the demo sees it: its settings, and its command line with ``--json``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.stack import Stack

__all__ = ["SECTIONS", "Decision", "Load", "RechannelView", "Transition", "count_moves", "unsettled"]

_SETTLED = frozenset({"drained", "killed", "released_idle"})


@dataclass(frozen=True)
class Transition:
    """One step in the life of one move."""

    move: str
    state: str
    query: str
    partition: int
    source: str
    target: str
    step: int
    reason: str = ""
    evidence: str = ""

    def __str__(self) -> str:
        where = f"step {self.step}  {self.query} partition {self.partition}: executor {self.source} → {self.target}"
        return f"{self.state:9} {where}  {self.evidence or self.reason}"


@dataclass(frozen=True)
class Load:
    """One executor in a decision: partitions and utilization before and after."""

    node: str
    executor: str
    partitions: tuple[int, int]
    utilization: tuple[float, float]


@dataclass(frozen=True)
class Decision:
    """The controller's answer to a request: what it will do, and why or why not."""

    at: float
    applied: bool
    sentences: list[str]
    loads: list[Load]
    batch_seconds: dict[str, tuple[float, float]]  # query -> before, and predicted


SECTIONS: dict[str, dict[str, Any]] = {
    "cluster": {"name": "demo"},
    # The link would spread new queries by itself: here, what Spark does by itself is to be seen first.
    "link": {"spread": False},
    # The timeout is out of the way: the demo shows what follows when executors join.
    "reschedule": {"mode": "apply", "timeout": 3600.0, "settle": 3.0},
    "gate": {"cooldown": 5.0},
}
"""Settings that agents, controller, link and command line share."""


class RechannelView:
    """Asks the command line about a run."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.problem = "no application reports yet"
        self._names: dict[str, str] = {}  # id of a query -> its name

    def ready(self) -> bool:
        """Whether the controller has what it needs for a decision on both queries; else ``problem`` says what lacks."""
        _, answer = self._stack.cli("status")
        applications = answer.get("applications", [])
        for application in applications:
            self._names |= {query["query"]: query["name"] for query in application["queries"]}
            self.problem = application["readiness"]["sentence"]
        self.problem = answer.get("error") or self.problem
        measured = [query["batch_seconds"] is not None for item in applications for query in item["queries"]]
        led = answer.get("controller") is not None
        return led and bool(measured) and all(measured) and all(item["readiness"]["ready"] for item in applications)

    def drain(self, node: str) -> str:
        """Order that a node is emptied and its executor released; returns the controller's sentence."""
        code, answer = self._stack.cli("drain", node, "--remove", "--reason", "demo")
        if code != os.EX_OK:
            raise RuntimeError(f"draining {node} was refused: {answer.get('error', answer)}")
        return str(answer["sentence"])

    def follow(self) -> None:
        """Start the process ``history``, which writes decisions and every step of every move, a line each."""
        command = [sys.executable, "-m", "rechannel", "history", "--follow", "--json"]
        self._stack.group.start("history", command, env=self._stack.environment)

    def history(self) -> tuple[list[Decision], list[Transition]]:
        """Read what the follow command has written so far."""
        decisions, transitions = [], []
        lines = self._stack.group.processes["history"].log.read_text(errors="replace")
        for line in lines.splitlines(keepends=True):
            if line.startswith("{") and line.endswith("\n"):
                entry = json.loads(line)
                if entry["type"] == "move":
                    transitions.append(self._transition(entry))
                elif entry["type"] == "decision":
                    decisions.append(_decision(entry))
        return decisions, transitions

    # What follows knows the shape of the command line's answers, and is the only place that does.

    def _transition(self, entry: Mapping[str, Any]) -> Transition:
        return Transition(
            move=entry["move"],
            state=entry["after"],
            query=self._names.get(entry["query"], entry["query"]),
            partition=entry["partition"],
            source=entry["source"] or "?",
            target=entry["target"],
            step=entry["step"],
            reason=entry["reason"],
            evidence=entry["evidence"],
        )


def _decision(entry: Mapping[str, Any]) -> Decision:
    streams = ", ".join(f"{count} {kind}" for kind, count in entry["streams"].items())
    loads = [
        Load(
            row["node"],
            row["executor"],
            (row["partitions_before"], row["partitions_after"]),
            (row["utilization_before"], row["utilization_after"]),
        )
        for row in entry["executors"]
    ]
    after = entry["batch_time_after"]
    return Decision(
        at=entry["at"],
        applied=entry["result"] == "applied",
        sentences=[entry["sentence"], f"streams by size class: {streams or 'none seen'}", *entry["notes"]],
        loads=loads,
        batch_seconds={
            entry["names"].get(query, query): (before, after.get(query, before))
            for query, before in entry["batch_time_before"].items()
        },
    )


def count_moves(transitions: list[Transition]) -> dict[str, int]:
    """Sum the moves up by what became of them; a miss is a steer that had to be said again."""
    states: dict[str, list[str]] = {}
    for transition in transitions:
        states.setdefault(transition.move, []).append(transition.state)
    return {
        "planned": len(states),
        "landed": sum(1 for path in states.values() if _SETTLED & set(path)),
        "missed": sum(max(0, path.count("steered") - 1) for path in states.values()),
        "abandoned": sum(1 for path in states.values() if "abandoned" in path),
    }


def unsettled(transitions: list[Transition]) -> int:
    """Return how many moves are still under way."""
    counts = count_moves(transitions)
    return counts["planned"] - counts["landed"] - counts["abandoned"]
