"""The command ``history``: decisions, moves and outcomes, oldest first."""

from __future__ import annotations

import contextlib
import datetime
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
import msgspec

from rechannel.conf.duration import parse_duration
from rechannel.conf.loader import suggest_names
from rechannel.conf.settings import Settings
from rechannel.daemon.cli.options import RedisPatience, unknown_name
from rechannel.wire import keys
from rechannel.wire.bounded_dict import BoundedDict
from rechannel.wire.codes import DecisionResult, Law, NotReadyReason, OutcomeVerdict, PlanResult, Trigger
from rechannel.wire.envelope import Envelope, bodies_of
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import Decision, LinkReport, MigrationOutcome, MoveTransition, QueryState
from rechannel.wire.printable import query_name
from rechannel.wire.redis.store import Store
from rechannel.wire.redis.streams import entry_number, read_new_entries

_POLL = 0.5
_REMEMBERED = 2 * keys.JOURNAL.bound  # entries that are not shown a second time
_TYPES = {Decision: "decision", MigrationOutcome: "outcome", MoveTransition: "move"}

Entry = dict[str, Any]  # one line of the history, as --json has it


@dataclass(frozen=True)
class HistoryFilter:
    """Selection of entries; "" and 0 select all.

    ``query``: id or name. ``trigger``, ``result`` (or reason) and ``verdict`` (of a migration's outcome) select
    decisions, and the moves and outcomes of those. ``since``: seconds since the epoch.
    """

    application: str = ""
    query: str = ""
    trigger: str = ""
    result: str = ""
    verdict: str = ""
    since: float = 0.0

    @property
    def selects_decisions(self) -> bool:
        """Whether some decisions are left out by trigger, result or verdict."""
        return bool(self.trigger or self.result or self.verdict)

    def accepts(self, decision: Decision) -> bool:
        """Whether trigger and result of a decision match."""
        return self.trigger in ("", decision.trigger) and self.result in ("", decision.result, decision.reason)


def parse_time(text: str, now: Callable[[], float] = time.time) -> float:
    """Parse a date with or without a time, or an age as in `parse_duration`; 0 for ""."""
    if not text:
        return 0.0
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.datetime.fromisoformat(text).timestamp()
    try:
        return now() - parse_duration(text)
    except ValueError:
        raise click.BadParameter(
            f"--since: {text!r} is not a time; write 90m, 1h30m, 3d, 2026-03-01 or 2026-03-01T10:00"
        ) from None


def show_history(
    settings: Settings, selection: HistoryFilter, *, limit: int, as_json: bool, follow_until: threading.Event | None
) -> None:
    """Print decisions, moves and outcomes.

    ``limit``: how many of the newest entries; ``follow_until``: print new entries too until it is set.
    """
    reader = HistoryReader(Store(settings.redis, settings.cluster.name), time.time, selection)
    entries = reader.first(limit)
    if follow_until is not None:
        _print(entries, as_json=as_json)
        for more in reader.follow(follow_until):
            _print(more, as_json=as_json)
    elif as_json:
        click.echo(json.dumps({"entries": entries}))
    elif entries:
        _print(entries, as_json=False)
    else:
        count = reader.decisions_read
        unmatched = f"none of {count} decisions matches" if count > 1 else "the one decision does not match"
        click.echo(unmatched if count else "nothing has been decided yet")


def application_names(store: Store, now: float) -> list[str]:
    """Return the applications that reported lately or were decided on."""
    reporting = set(store.applications(now - keys.APPLICATIONS.ttl))
    decided = {envelope.application for envelope in store.last(keys.DECISIONS, "", keys.DECISIONS.bound)}
    return sorted(name for name in reporting | decided if keys.is_valid_name(name))


def _print(entries: list[Entry], *, as_json: bool) -> None:
    from rechannel.daemon.cli.tables import history_line

    for entry in entries:
        click.echo(json.dumps(entry) if as_json else history_line(entry))


class HistoryReader:
    """Reader of decisions, outcomes and journals; ``decisions_read`` counts all decisions."""

    def __init__(self, store: Store, clock: Callable[[], float], selection: HistoryFilter | None = None) -> None:
        self._store = store
        self._clock = clock
        self._selection = selection or HistoryFilter()
        self.decisions_read = 0
        self._query_ids: set[str] = set()  # of the queries that are selected; applications may use one name
        self._codes: set[str] = set()  # codes in Redis: a later release may have others
        self._query_names: dict[str, str] = {}
        self._matching = BoundedDict[str, None](_REMEMBERED)  # ids of decisions; their moves are shown too
        self._judged = BoundedDict[str, None](_REMEMBERED)  # those with an outcome of the selected verdict
        self._after: dict[tuple[str, str], str] = {}  # stream's pattern and application -> last id
        self._oldest: dict[tuple[str, str], float] = {}  # as above -> time of the oldest entry at the first read
        self._shown = BoundedDict[tuple[str, ...], None](_REMEMBERED)

    def first(self, limit: int) -> list[Entry]:
        """Return the newest entries, oldest first; CommandError if the filter has an unknown name."""
        names = self._applications()
        application = self._selection.application
        if application and application not in names:
            raise unknown_name("application", application, names)
        self._query_names |= {state.query: state.name for state in self._reported_queries() if state.name}
        if self._selection.query:
            self._query_ids = self._resolve_query(self._selection.query)
        entries = self._read_all(limit)
        self._check_code("trigger", self._selection.trigger, (*Trigger,))
        self._check_code("result", self._selection.result, (*DecisionResult, *PlanResult, *Law, *NotReadyReason))
        self._check_code("verdict", self._selection.verdict, (*OutcomeVerdict,))
        return entries

    def follow(self, stop: threading.Event) -> Iterator[list[Entry]]:
        """Yield new entries until ``stop`` is set. An outage of Redis is waited for."""
        patience = RedisPatience()
        while not stop.wait(_POLL):
            if entries := patience.read(lambda: self._read_new(keys.DECISIONS.bound)):
                yield entries

    def _resolve_query(self, query: str) -> set[str]:
        """Return the ids of the queries of an id or name; CommandError if it is unknown."""
        names = {state.query: query_name(state.query, state.name) for state in self._reported_queries()}
        ids = {one for one, name in names.items() if query in (one, name)}
        if not ids:
            # A query that has ended is in no report any more, but its moves are in the journal.
            entries = self._read_all(keys.JOURNAL.bound)
            past = {entry["query"] for entry in entries if entry["type"] == _TYPES[MoveTransition]}
            if query not in past:
                raise unknown_name("query", query, {*names.values(), *past})
        return ids or {query}

    def _reported_queries(self) -> list[QueryState]:
        reports = [self._store.get(keys.REPORT, application) for application in self._applications()]
        return [state for report in bodies_of(reports, LinkReport) for state in report.queries]

    def _check_code(self, option: str, code: str, existing: tuple[str, ...]) -> None:
        if code and code not in existing and code not in self._codes:
            names = suggest_names(code, tuple(dict.fromkeys(existing)))
            raise CommandError(ExitCode.REFUSED, f"unknown {option} {code}; {names}")

    def _applications(self) -> list[str]:
        return application_names(self._store, self._clock())

    def _read_all(self, limit: int) -> list[Entry]:
        self._after.clear()
        self._oldest.clear()
        self._shown.clear()
        self.decisions_read = 0
        return self._read_new(limit)[-limit:]

    def _read_new(self, limit: int) -> list[Entry]:
        """Return entries since the last call; of a stream not read before the newest ``limit``."""
        read: list[Envelope] = []
        selection = self._selection
        selective = selection.selects_decisions or selection.application or self._query_ids
        journals = [selection.application] if selection.application else self._applications()
        streams = [(keys.DECISIONS, ""), (keys.OUTCOMES, ""), *((keys.JOURNAL, name) for name in journals)]
        after = dict(self._after)
        for rule, name in streams:
            stream, before = (rule.pattern, name), self._after.get((rule.pattern, name), "")
            first = rule.bound if selective else limit
            after[stream], envelopes = read_new_entries(self._store, rule, name, before, first=first)
            read += self._after_first(stream, before, after[stream], envelopes)
        self._after = after  # only now: where Redis was lost in between, all of them are read again
        judged = {it.body.decision: it for it in read if isinstance(it.body, MigrationOutcome)}  # the last one counts
        read = [it for it in read if not isinstance(it.body, MigrationOutcome) or judged[it.body.decision] is it]
        for envelope in read:
            if isinstance(envelope.body, MigrationOutcome):
                self._codes.add(envelope.body.verdict)
                if envelope.body.verdict == selection.verdict:
                    self._judged[envelope.body.decision] = None
        entries = [entry for envelope in read if (entry := self._entry(envelope)) is not None]
        entries = [entry for entry in entries if entry["at"] >= selection.since and self._is_new(entry)]
        return sorted(entries, key=lambda entry: float(entry["at"]))

    def _after_first(
        self, stream: tuple[str, str], before: str, after: str, envelopes: list[Envelope]
    ) -> list[Envelope]:
        """Return the entries without those from before the first read.

        A stream is read from its start where its end was lost, as at a fail-over.
        """
        if stream not in self._oldest:
            if envelopes:
                self._oldest[stream] = min(envelope.time for envelope in envelopes)
            return envelopes
        if before and entry_number(after or "0") >= entry_number(before):
            return envelopes
        return [envelope for envelope in envelopes if envelope.time >= self._oldest[stream]]

    def _is_new(self, entry: Entry) -> bool:
        # What arrives while a stream is read for the first time is read a second time. What was stored again, as the
        # answer was lost, is the same; an outcome is measured anew for that, at another time, and is new if it differs.
        which = entry["verdict"] if entry["type"] == _TYPES[MigrationOutcome] else str(entry["at"])
        key = (entry["type"], entry["decision"], entry.get("move", ""), entry.get("after", ""), which)
        is_new = key not in self._shown
        self._shown[key] = None
        return is_new

    def _entry(self, envelope: Envelope) -> Entry | None:
        """Return the entry of a message; None if it is of another type or does not match."""
        body = envelope.body
        if isinstance(body, Decision):
            self.decisions_read += 1
        if self._selection.application not in ("", envelope.application):
            return None
        if isinstance(body, Decision):
            self._codes |= {body.trigger, body.result, body.reason}
            self._query_names |= body.names
            if self._selection.accepts(body):
                self._matching[body.decision] = None
        if not isinstance(body, Decision | MigrationOutcome | MoveTransition):
            return None
        if self._selection.selects_decisions and body.decision not in self._matching:
            return None
        if self._selection.verdict and body.decision not in self._judged:
            return None
        if self._query_ids and self._query_ids.isdisjoint(_queries(body)):
            return None
        entry = {"application": envelope.application, **msgspec.to_builtins(body), "type": _TYPES[type(body)]}
        if isinstance(body, MoveTransition):
            entry["name"] = self._query_names.get(body.query, "")
        return entry


def _queries(body: Decision | MigrationOutcome | MoveTransition) -> set[str]:
    """Return the ids of the queries that an entry is about."""
    if isinstance(body, Decision):
        return {*body.batch_time_before, *(move.query for move in body.moves)}
    return set(body.batch_before) if isinstance(body, MigrationOutcome) else {body.query}
