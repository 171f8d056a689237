"""Every code that crosses between the parts: one enum for each kind, with its meaning and what to do about it.

The handbook's tables, `--help` texts and metric labels are made from here. A code is a string on the wire; no other
module compares one with a string literal.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Code(StrEnum):
    """A code with its ``meaning`` and its ``cure``, one sentence each; "" where nothing is to be done or said."""

    meaning: str
    cure: str

    def __new__(cls, value: str, meaning: str = "", cure: str = "") -> Self:
        """Make a member of its value, which is the string on the wire."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning, member.cure = meaning, cure
        return member


class Trigger(Code):
    """Why a decision was made at that moment."""

    TIMEOUT = "timeout", "It was time (`reschedule.timeout`)."
    EXECUTORS = "executors", "Executors joined or left, and their set was stable since (`reschedule.settle`)."
    OVERLOAD = (
        "overload",
        "An executor or a query was overloaded (`reschedule.overload_utilization`, `reschedule.overload_duration`).",
    )
    CONTINUATION = "continuation", "The plan before was cut to `migration.max_moves`, and its outcome was kept."
    OPERATOR = "operator", "An operator asked."
    DRAIN = "drain", "State was to leave a node (`rechannel drain`)."
    ROLLBACK = "rollback", "What a decision had moved was to go back."
    PENDING = "pending", "A saved plan had waited for its time."


class Outcome(Code):
    """What became of a decision."""

    APPLIED = "applied", "Its moves were begun."
    PLANNED = "planned", "Nothing was begun."
    REFUSED = "refused", "Nothing was begun: a law refused."
    NOT_READY = "not-ready", "Nothing was decided: the figures were not there."


class PlanResult(Code):
    """What a plan came to, where no law refused it as a whole."""

    OK = "ok", "It moves something, and it pays."
    NOTHING_TO_DO = "nothing-to-do", "No partition is to be moved."
    LAW = "law", "A hard law refuses it; the refusals say which."


class OutcomeVerdict(Code):
    """What a migration brought, beside what was predicted."""

    KEPT = "kept", "Batches are as predicted, or not longer than before beyond noise."
    REGRESSED = "regressed", "Batches are longer than predicted and than before, beyond noise."
    NOT_JUDGED = "not-judged", "Too little is known to compare."


class NotReadyReason(Code):
    """Why nothing can be decided on an application now."""

    NOT_LEADING = "not-leading", "The controller that was asked does not lead any more.", "Ask again."
    OVERTAKEN = (
        "overtaken",
        (
            "While the plan was made, something was ordered or begun that it does not know of: a drain, a "
            "rollback, moves out of the same budget."
        ),
        "Ask again; what the controller began by itself is decided on again by itself.",
    )
    NO_REPORT = (
        "no-report",
        "No link reports for this application.",
        "Is it attached, and does its driver reach Redis? Its output says why not.",
    )
    NO_EXECUTORS = (
        "no-executors",
        "The application has no executors.",
        "Wait, or see why Spark's cluster gives it none.",
    )
    NO_ACTIVE_QUERY = "no-active-query", "No streaming query is active.", "Start one."
    QUERY_PROBLEM = (
        "query-problem",
        "No active query can be moved; each one's reason is given.",
        "See [problems that links tell](#problems-that-links-tell); waiting does not help.",
    )
    NO_STATE = (
        "no-state",
        "No active query has a known stateful stage.",
        "Wait for its first batches; a query without state has nothing to move.",
    )
    TOO_FEW_BATCHES = "too-few-batches", "Fewer measured batches than `reschedule.batches`.", "Wait as long as it says."
    DRIVER_SILENT = (
        "driver-silent",
        (
            "The driver's link has not reported for ten seconds (or five reports): the driver has ended, hangs or"
            " does not reach Redis. `status` marks its figures as old; agents are not the cause."
        ),
        "Look at the driver and its log. A driver that has ended is shown for a minute.",
    )
    NO_BATCHES = "no-batches", "No stage of any query was measured yet.", "Wait for a batch."
    MIGRATION_RUNNING = (
        "migration-running",
        "A migration is under way; there is one at a time.",
        "Wait, or `rechannel stop`.",
    )
    OUTCOME_AWAITED = (
        "outcome-awaited",
        "What the last migration brought is not known yet.",
        "Wait for `migration.settle_batches` batches, ten minutes at most.",
    )


class Law(Code):
    """What refuses a move or a plan."""

    TARGET = (
        "target",
        "The executor that was to take the partition is not known, gone, drained or being retired.",
        "Nothing, the next decision knows; for a saved plan make a new one.",
    )
    QUERY_PROBLEM = (
        "query-problem",
        "The query is not active, or cannot be moved.",
        "See [problems that links tell](#problems-that-links-tell).",
    )
    RUN_UNKNOWN = (
        "run-unknown",
        "The query's run is not known, so an order could not be bound to it.",
        "Wait for its next report.",
    )
    STORES_UNKNOWN = (
        "stores-unknown",
        "The stage or its state stores are not known (yet).",
        "Wait for a batch; if it lasts, the checkpoint's operator metadata cannot be read.",
    )
    PARTITION = (
        "partition",
        "The stage has no partition of this number.",
        "The plan is of another query or checkpoint: make a new one.",
    )
    IN_FLIGHT = "in-flight", "This partition is being moved already.", "Wait."
    MAX_MOVES = (
        "max-moves",
        (
            "More moves than `migration.max_moves`; the heaviest go first, the rest follows once they were kept "
            "(trigger `continuation`)."
        ),
        "Nothing, or raise it.",
    )
    BUDGET = (
        "budget",
        "More moves than `reschedule.moves_per_hour` leaves.",
        "Wait for the moment it names; an operator's order is not held back.",
    )
    UTILIZATION = (
        "utilization",
        "An executor would be busier than `gate.max_utilization` and than the busiest today.",
        "Add executors: moving alone does not help.",
    )
    GATE = (
        "gate",
        "It does not pay: too small a gain (`gate.min_gain`), or more cost than gain within `gate.horizon`.",
        "Nothing. `--force` goes all the same, and is then not moved back by itself.",
    )
    COOLDOWN = (
        "cooldown",
        (
            "The last migration ended less than `gate.cooldown` ago; longer after one that the controller took "
            "back by itself, and then the sentence says so."
        ),
        "Wait, or `--force`.",
    )
    PAUSED = "paused", "Everything is paused.", "`rechannel resume`."
    SCALE_OUT = (
        "scale-out",
        "The policy finds no room for everything on these executors.",
        "Add executors, or another policy.",
    )
    POLICY = (
        "policy",
        "The policy does not know what it was given, or broke its own rules.",
        "The sentence says what; a broken rule is a defect: report it.",
    )
    EXCLUDED = "excluded", "Nothing begins by itself in this period (`reschedule.excluded`).", "Nothing; orders go."
    TRIGGER_COOLDOWN = (
        "trigger-cooldown",
        "The last decision by this trigger is less than its cool-down ago.",
        "Nothing.",
    )
    AGREEMENTS = (
        "agreements",
        "A costly plan has to be recommended `reschedule.agreements` times in a row.",
        "Nothing, or `rechannel rebalance --apply` if you agree.",
    )
    PLAN_EXPIRED = (
        "plan-expired",
        "A saved plan is for other executors or runs than those of now.",
        "`rechannel plan --save` anew.",
    )
    WINDOW_PASSED = (
        "window-passed",
        "A waiting plan could not be begun in its time; the sentence says what was in the way.",
        "Save a new plan, or choose a longer period.",
    )
    CANCELED = "canceled", "Somebody ended the wait of a plan.", "Nothing."
    ROLLBACK = (
        "rollback",
        "None of the partitions of that decision can go back.",
        "Nothing; `rechannel plan` says what is better now.",
    )


class MoveState(Code):
    """Where a move is in its life; drawn in `rechannel.migration.moves`."""

    PLANNED = "planned", "The link has accepted it.", "Nothing."
    PREPARED = "prepared", "Its state can be loaded elsewhere.", "Nothing."
    STEERED = "steered", "Spark was told the new executor.", "Nothing; a query without batches keeps it there."
    RELEASED_IDLE = (
        "released_idle",
        "Spark was told, and no batch comes.",
        "Nothing: the next batch goes to the target.",
    )
    DRAINED = "drained", "A batch that ran on the target is committed: it has moved.", "Nothing."
    KILLED = "killed", "The old copy is closed.", "Nothing."
    ABANDONED = "abandoned", "Given up; the partition stays where it is.", "See its reason."


class MoveReason(Code):
    """Why a move took a step."""

    ACCEPTED = "accepted", "A signed placement wants it, or the link itself (a new query, a lost executor).", "Nothing."
    READY = "ready", "The newest snapshot is fresh enough (`migration.max_replay`).", "Nothing."
    SNAPSHOT_LATE = (
        "snapshot-late",
        "It was not, after two maintenance intervals; it goes all the same and replays more.",
        "Shorten Spark's maintenance interval if it happens often.",
    )
    SAID = "said", "Spark was told.", "Nothing."
    SAID_AGAIN = (
        "said-again",
        "A batch ran it elsewhere, so Spark was told again.",
        "If it happens often, see `abandoned` by `deadline`.",
    )
    LANDED = "landed", "It ran on its target.", "Nothing."
    NO_BATCH = "no-batch", "The query is idle.", "Nothing."
    CLOSED = "closed", "The old executor's log says that it closed its copy.", "Nothing."
    EXECUTOR_GONE = "executor-gone", "The old executor is gone, and its copy with it.", "Nothing."
    PRESUMED = (
        "presumed",
        "Two maintenance intervals have passed; no log line was seen.",
        "Nothing; with executors' logs at INFO it would be known.",
    )
    DEADLINE = (
        "deadline",
        "It missed `link.deadline_batches` batches, or waited `link.deadline_seconds`.",
        "Tasks drift: a longer `spark.locality.wait`, fewer partitions a core; is the target excluded or stalled?",
    )
    SUPERSEDED = "superseded", "A newer placement wants something else, or the migration was ended.", "Nothing."
    EXPIRED = (
        "expired",
        "The placement was not renewed: no controller led for `controller.placement_ttl`.",
        "See to the controllers.",
    )
    RUN_ENDED = "run-ended", "The query ended or was started again.", "Nothing."
    TARGET_GONE = "target-gone", "The executor that was to take it is gone.", "Nothing; the next decision knows."
    ALREADY_THERE = "already-there", "Spark runs it there already.", "Nothing."
    STORES_UNKNOWN = (
        "stores-unknown",
        "The names of its state stores are not known.",
        "Wait; the next decision tries again.",
    )
