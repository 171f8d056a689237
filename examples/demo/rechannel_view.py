"""The demo's one window on Rechannel: its configuration, its processes, and its command line with ``--json``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Decision", "Load", "RechannelView", "Transition", "count_moves", "unsettled"]

_MODULE = "rechannel.daemon.cli.main"
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
    """What a decision says of one executor: partitions and utilization before and after."""

    node: str
    executor: str
    partitions: tuple[int, int]
    utilization: tuple[float, float]


@dataclass(frozen=True)
class Decision:
    """The controller's answer to a request: what it will do, and why or why not."""

    accepted: bool
    sentences: list[str] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)


class RechannelView:
    """Writes the configuration of a run and asks the command line about it."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.config = directory / "rechannel.toml"
        self._environment = dict(environment) | {"RECHANNEL_CONFIG": str(self.config)}
        self.problem = "no application reports yet"
        self._names: dict[str, str] = {}  # id of a query -> its name

    def write_config(self, redis_url: str) -> Path:
        """Write the configuration that agents, controller, link and command line share, with a fresh pair of keys."""
        from rechannel.wire.signing import make_keys

        private, public = make_keys(self.directory / "keys")
        sections: dict[str, dict[str, Any]] = {
            "cluster": {"name": "demo"},
            "redis": {"url": redis_url},
            "signing": {"private_key_file": str(private), "public_key_file": str(public)},
            "agent": {"sample": 0.5, "window": 5.0},
            # The link would spread new queries by itself: here, what Spark does by itself is to be seen first.
            "link": {"directory": str(self.directory / "link"), "spread": False},
            # The timeout is out of the way: the demo asks when it has measured. Changed executors act by themselves.
            "reschedule": {"mode": "apply", "timeout": 3600.0, "settle": 3.0},
            "gate": {"cooldown": 5.0},
        }
        lines = []
        for section, values in sections.items():
            lines.append(f"[{section}]\n")
            lines += [f"{key} = {json.dumps(value)}\n" for key, value in values.items()]
        self.config.write_text("".join(lines))
        return self.config

    def environment(self) -> dict[str, str]:
        """Return the environment in which Rechannel's processes and the application find the configuration."""
        return dict(self._environment)

    def agent_command(self, node: str) -> list[str]:
        """Return the command of one node's agent."""
        return [sys.executable, "-m", _MODULE, "agent", "--config", str(self.config), "--node", node]

    def controller_command(self) -> list[str]:
        """Return the command of the controller."""
        return [sys.executable, "-m", _MODULE, "controller", "--config", str(self.config)]

    def _ask(self, *words: str, timeout_s: float = 30.0) -> tuple[int, Any]:
        command = [sys.executable, "-m", _MODULE, *words, "--json"]
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, env=self._environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        try:
            return done.returncode, json.loads(done.stdout)
        except json.JSONDecodeError:
            return done.returncode, {"error": (done.stderr or done.stdout).strip()[-500:]}

    def ready(self) -> bool:
        """Whether the controller has what it needs for a decision on both queries; else ``problem`` says what lacks."""
        _, answer = self._ask("status")
        applications = answer.get("applications", [])
        for application in applications:
            self._names |= {query["query"]: query["name"] for query in application["queries"]}
            self.problem = application["readiness"]["sentence"]
        self.problem = answer.get("error") or self.problem
        measured = [query["batch_seconds"] is not None for item in applications for query in item["queries"]]
        led = answer.get("controller") is not None
        return led and bool(measured) and all(measured) and all(item["readiness"]["ready"] for item in applications)

    def trigger_rebalance(self) -> Decision:
        """Ask for a rebalancing now."""
        code, answer = self._ask("rebalance", "--apply", "--reason", "demo", timeout_s=60.0)
        return self._decision(code, answer)

    def drain(self, node: str) -> str:
        """Order that a node is emptied and its executor released; returns the controller's sentence."""
        code, answer = self._ask("drain", node, "--remove", "--reason", "demo")
        if code != os.EX_OK:
            raise RuntimeError(f"draining {node} was refused: {answer.get('error', answer)}")
        return str(answer["sentence"])

    def last_sentence(self) -> str:
        """Return what the controller said last."""
        _, answer = self._ask("status")
        return str((answer.get("controller") or {}).get("last_sentence", answer.get("error", "")))

    def follow_command(self) -> list[str]:
        """Return the command that writes every step of every move, a line each, as it happens."""
        return [sys.executable, "-m", _MODULE, "history", "--follow", "--json"]

    def transitions(self, lines: str) -> list[Transition]:
        """Read what the follow command has written so far."""
        found = []
        for line in lines.splitlines(keepends=True):
            if line.startswith("{") and line.endswith("\n"):
                entry = json.loads(line)
                if entry["type"] == "move":
                    found.append(self._transition(entry))
        return found

    # What follows knows the shape of the command line's answers, and is the only place that does.

    def _decision(self, code: int, answer: Mapping[str, Any]) -> Decision:
        decision = answer.get("decision")
        if decision is None:
            return Decision(False, [str(answer.get("error") or answer)])
        streams = ", ".join(f"{count} {kind}" for kind, count in decision["streams"].items())
        sentences = [decision["sentence"], f"streams by size class: {streams or 'none seen'}"]
        sentences += [f"refused ({item['scope']}, {item['law']}): {item['detail']}" for item in decision["refusals"]]
        sentences += decision["notes"]
        loads = [
            Load(
                row["node"],
                row["executor"],
                (row["partitions_before"], row["partitions_after"]),
                (row["utilization_before"], row["utilization_after"]),
            )
            for row in decision["executors"]
        ]
        return Decision(code == os.EX_OK, sentences, loads)

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
