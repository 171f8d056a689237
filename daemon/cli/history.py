"""The command ``history``: decisions and the steps of their moves, merged in time, oldest first."""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
import msgspec

from rechannel.conf.loader import suggest_names
from rechannel.conf.settings import Settings
from rechannel.daemon.model.collector import read_new_entries
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import Decision, LinkReport, MigrationOutcome, MoveTransition, QueryState
from rechannel.wire.printable import query_name
from rechannel.wire.redis.store import Store

_POLL = 0.5
#: what decisions are made because of, how they end, and the codes that say why: laws, and what is not ready
TRIGGERS = ("timeout", "executors", "overload", "continuation", "operator", "drain", "rollback", "pending")
OUTCOMES = ("applied", "planned", "refused", "not-ready")
# fmt: off
REASONS = (
    "ok", "nothing-to-do", "law", "agreements", "budget", "canceled", "cooldown", "excluded", "gate", "in-flight",
    "max-moves", "partition", "paused", "plan-expired", "policy", "query-problem", "rollback", "run-unknown",
    "scale-out", "stores-unknown", "target", "trigger-cooldown", "utilization", "window-passed", "migration-running",
    "driver-silent", "no-active-query", "no-batches", "no-executors", "no-report", "no-state", "not-leading",
    "outcome-awaited", "overtaken", "too-few-batches",
)
# fmt: on

Entry = dict[str, Any]


@dataclass(frozen=True)
class HistoryFilter:
    """Which entries are shown: of decisions by this trigger, that ended so (outcome or reason), from ``since`` on."""

    trigger: str = ""
    outcome: str = ""
    since: float = 0.0

    @property
    def some(self) -> bool:
        """Whether not all are."""
        return bool(self.trigger or self.outcome)

    def accepts(self, decision: Decision) -> bool:
        """Whether a decision is among them, whenever it was."""
        by = self.trigger in ("", decision.trigger)
        return by and self.outcome in ("", decision.outcome, decision.reason)


def moment(text: str, now: Callable[[], float] = time.time) -> float:
    """Read a time: so long ago (90s, 10m, 2h, 3d), or a date with or without a time of day; 0 where there is none."""
    if not text:
        return 0.0
    number, unit = text[:-1], {"s": 1, "m": 60, "h": 3600, "d": 86_400}.get(text[-1], 0)
    try:
        if unit and number.replace(".", "", 1).isdigit():
            return now() - float(number) * unit
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"--since: {text!r} is no time; write 90m, 2h, 3d, 2026-03-01 or 2026-03-01T10:00"
        ) from None


def run(
    settings: Settings,
    *,
    application: str,
    query: str,
    limit: int,
    as_json: bool,
    follow_until: threading.Event | None,
    wanted: HistoryFilter | None = None,
) -> None:
    """Show the newest ``limit`` entries, then with an event to stop on, whatever comes."""
    reader = HistoryReader(Store(settings.redis, settings.cluster.name), time.time, application)
    reader.wanted = wanted or HistoryFilter()
    reader.only_query(query)
    first = reader.first(limit)
    reader.examine()
    if follow_until is None:
        if as_json:
            click.echo(json.dumps({"entries": first}))
            return
        _show(first, as_json=False)
        if not first:
            seen = reader.seen
            decisions = f"none of {seen} decisions matches" if seen > 1 else "the one decision does not match"
            click.echo(decisions if seen else "nothing has been decided yet")
        return
    _show(first, as_json)
    for entries in reader.follow(follow_until):
        _show(entries, as_json)


def _show(entries: list[Entry], as_json: bool) -> None:
    for entry in entries:
        if as_json:
            click.echo(json.dumps(entry))
        else:
            from rechannel.daemon.cli import tables

            click.echo(tables.history_line(entry))


class HistoryReader:
    """Reads decisions and journals of one application, or of all. ``seen``: decisions read, wanted or not."""

    def __init__(self, store: Store, clock: Callable[[], float], application: str = "") -> None:
        self._store = store
        self._clock = clock
        self._only = application
        self.wanted = HistoryFilter()
        self.seen = 0
        self._names: set[str] = set()  # triggers, outcomes and reasons of what was read: those of later releases too
        self._query = ""
        self._called: dict[str, str] = {}  # query -> its name, as decisions and reports have it
        self._accepted: set[str] = set()  # decisions that are wanted, so that their moves are too
        self._after: dict[tuple[str, str], str] = {}  # stream's pattern and application -> last id
        self._shown: set[tuple[str, ...]] = set()

    def only_query(self, query: str) -> None:
        """Show nothing but what touches this query, by id or name; CommandError when no application has it."""
        if not query:
            return
        known = {query_name(state.query, state.name): state.query for state in self._reported()}
        found = known.get(query, query if query in known.values() else "")
        if not found:
            # A query that has ended is in no report any more, but its moves are in the journal.
            past = {entry["query"] for entry in self.first(keys.JOURNAL.bound) if entry["type"] == "move"}
            if query not in past:
                names = ", ".join(sorted(set(known) | past)) or "none"
                raise CommandError(ExitCode.REFUSED, f"unknown query {query}; known are {names}")
        self._query = found or query

    def _reported(self) -> list[QueryState]:
        reports = [self._store.get(keys.REPORT, application) for application in self._applications()]
        return [
            state
            for report in reports
            if report is not None and isinstance(report.body, LinkReport)
            for state in report.body.queries
        ]

    def examine(self) -> None:
        """CommandError where what is wanted has a name that no decision can have."""
        for what, name, known in (
            ("trigger", self.wanted.trigger, TRIGGERS),
            ("outcome", self.wanted.outcome, (*OUTCOMES, *REASONS)),
        ):
            if name and name not in (*known, *self._names):
                raise CommandError(ExitCode.REFUSED, f"unknown {what} {name}; {suggest_names(name, known)}")

    def first(self, limit: int) -> list[Entry]:
        """Return the newest entries, oldest first."""
        known = self._applications()
        self._called |= {state.query: state.name for state in self._reported() if state.name}
        if self._only and self._only not in known:
            raise CommandError(
                ExitCode.REFUSED, f"unknown application {self._only}; known are {', '.join(known) or 'none'}"
            )
        self._after.clear()
        self._shown.clear()
        self.seen = 0
        return self._new(limit)[-limit:]

    def follow(self, stop: threading.Event) -> Iterator[list[Entry]]:
        """Yield what is new until ``stop`` is set."""
        while not stop.wait(_POLL):
            entries = self._new(keys.DECISIONS.bound)
            if entries:
                yield entries

    def _applications(self) -> list[str]:
        seen = set(self._store.applications(self._clock() - keys.APPLICATIONS.ttl))
        decided = {envelope.application for envelope in self._store.last(keys.DECISIONS, "", keys.DECISIONS.bound)}
        return sorted(name for name in seen | decided if keys.is_valid_name(name))

    def _new(self, first: int) -> list[Entry]:
        entries: list[Entry] = []
        journals = [self._only] if self._only else self._applications()
        streams = [(keys.DECISIONS, ""), (keys.OUTCOMES, ""), *((keys.JOURNAL, name) for name in journals)]
        for rule, name in streams:
            known = self._after.get((rule.pattern, name), "")
            count = rule.bound if self.wanted.some else first
            self._after[rule.pattern, name], envelopes = read_new_entries(self._store, rule, name, known, first=count)
            entries += [entry for envelope in envelopes if (entry := self._entry(envelope)) is not None]
        entries = [entry for entry in entries if entry["at"] >= self.wanted.since and self._is_new(entry)]
        return sorted(entries, key=lambda entry: float(entry["at"]))

    def _is_new(self, entry: Entry) -> bool:
        # What came in while a stream was read for the first time is read a second time.
        key = (entry["type"], entry["decision"], entry.get("move", ""), entry.get("after", ""), str(entry["at"]))
        new = key not in self._shown
        self._shown.add(key)
        return new

    def _entry(self, envelope: Envelope) -> Entry | None:
        body = envelope.body
        if self._only and envelope.application != self._only:
            return None
        if isinstance(body, Decision):
            self.seen += 1
            self._names |= {body.trigger, body.outcome, body.reason}
            self._called |= body.names
        if self.wanted.some:
            if isinstance(body, Decision) and self.wanted.accepts(body):
                self._accepted.add(body.decision)
            if getattr(body, "decision", "") not in self._accepted:
                return None
        if isinstance(body, Decision):
            if self._query and self._query not in {*body.batch_time_before, *(move.query for move in body.moves)}:
                return None
            return {"application": envelope.application, **msgspec.to_builtins(body), "type": "decision"}
        if isinstance(body, MigrationOutcome):
            if self._query and self._query not in body.batch_before:
                return None
            return {"application": envelope.application, **msgspec.to_builtins(body), "type": "outcome"}
        if isinstance(body, MoveTransition):
            if self._query and body.query != self._query:
                return None
            move = {**msgspec.to_builtins(body), "name": self._called.get(body.query, "")}
            return {"application": envelope.application, **move, "type": "move"}
        return None
