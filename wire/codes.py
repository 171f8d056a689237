"""Codes in messages: one enum for each kind, with the meaning and the cure of each code.

The handbook's tables, the sentences of `rechannel explain` and the filters of `rechannel history` are made from here. A
code is a string on the wire; no other module compares one with a string literal.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Code(StrEnum):
    """Code with its ``meaning`` and its ``cure``, one or two sentences each; "" for none."""

    meaning: str
    cure: str

    def __new__(cls, value: str, meaning: str = "", cure: str = "") -> Self:
        """Make a member that is equal to its string."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning, member.cure = meaning, cure
        return member

    @classmethod
    def alternatives(cls) -> str:
        """Return all codes of this kind as text: ``a, b or c``."""
        *others, last = cls
        return f"{', '.join(others)} or {last}"


class Trigger(Code):
    """Cause of a decision at that moment."""

    TIMEOUT = "timeout", "The time between two decisions was over (`reschedule.timeout`)."
    EXECUTORS = (
        "executors",
        "Executors joined or left, and their set has been stable since then (`reschedule.settle`).",
    )
    OVERLOAD = "overload", "An executor (`gate.max_utilization`) or a query was overloaded."
    IMBALANCE = "imbalance", "The executors were loaded more unevenly than they need be, by `gate.min_gain`."
    CONTINUATION = (
        "continuation",
        "The previous plan was cut to `migration.max_moves`, and the outcome of its moves was `confirmed`.",
    )
    OPERATOR = "operator", "An operator asked for it."
    DRAIN = "drain", "A drained node still held state (`rechannel drain`)."
    ROLLBACK = "rollback", "An earlier decision was to be rolled back."
    SCHEDULED = "scheduled", "The time of a scheduled plan had come."


class Mode(Code):
    """Permission of the controller to act (`reschedule.mode`)."""

    OBSERVE = "observe", "Decisions are recorded; only what an operator orders is moved."
    APPLY = "apply", "Decisions are carried out."


class DecisionResult(Code):
    """Result of a decision."""

    APPLIED = "applied", "Its moves were begun."
    PLANNED = "planned", "Nothing was begun."
    REFUSED = "refused", "Nothing was begun, because a law refused it."
    NOT_READY = "not-ready", "Nothing was decided, because measurements were missing."


class PlanResult(Code):
    """Reasons of decisions that name no single law."""

    OK = "ok", "The plan moves something, and the move pays."
    NOTHING_TO_DO = "nothing-to-do", "No better placement was found."
    LAW = (
        "law",
        (
            "Laws that `--force` does not skip (`query-problem`, `run-unknown`, `stores-unknown`, `partition`, "
            "`target`, `in-flight`) refused every move; the refusals name them."
        ),
    )


class OutcomeVerdict(Code):
    """Effect of a migration, compared with its prediction."""

    CONFIRMED = (
        "confirmed",
        "Batches are, within noise, no longer than at least one of these: predicted, before, without the moves.",
    )
    REGRESSED = (
        "regressed",
        (
            "Beyond noise, batches are longer than predicted, longer than before, and longer than they would be "
            "without the moves. Mode `apply` rolls them back, unless they were forced or are of a drain or rollback."
        ),
    )
    NOT_JUDGED = "not-judged", "There is too little data for a comparison; the sentence gives the reason."


class NotReadyReason(Code):
    """Cause that prevents a decision on an application at the moment."""

    NOT_LEADING = "not-leading", "The controller that was asked no longer leads.", "Ask again."
    OVERTAKEN = (
        "overtaken",
        (
            "The plan is out of date: a drain, a rollback, a migration, a scheduled plan, or moves from the same "
            "hourly budget were ordered or begun while it was made."
        ),
        "Ask again. The controller repeats its own decisions automatically.",
    )
    UNEXPLAINED = (
        "unexplained",
        (
            "The model, applied to the present placement, predicts batches that differ from a query's measured ones by "
            "more than `gate.max_residual`. A prediction for another placement would be wrong too."
        ),
        "The sentence names the query. Wait until its load is steady, or find out what else its executors do.",
    )
    NO_REPORT = (
        "no-report",
        "The application's link sends no reports.",
        "Check that the application is attached and that its driver reaches Redis; the driver's output has the reason.",
    )
    NO_EXECUTORS = (
        "no-executors",
        "The application has no executors.",
        "Wait, or find out why Spark's cluster gives it none.",
    )
    NO_ACTIVE_QUERY = "no-active-query", "No streaming query is active.", "Start one."
    QUERY_PROBLEM = (
        "query-problem",
        "No active query can be moved; the sentence gives the reason for each.",
        "See [problems that links report](#problems-that-links-report); waiting does not help.",
    )
    NO_STATE = (
        "no-state",
        "No stateful stage of an active query is known.",
        "Wait for its first batches. A query without state has nothing to move.",
    )
    TOO_FEW_BATCHES = (
        "too-few-batches",
        (
            "Fewer batches than `reschedule.batches` are measured, or none since a query began or ended, a load "
            "changed or partitions moved."
        ),
        (
            "Wait for the next batches. Where batches have too many tasks to be stored: fewer partitions, or a lower "
            "`reschedule.batches`."
        ),
    )
    DRIVER_SILENT = (
        "driver-silent",
        (
            "The driver's link has not reported for ten seconds: the driver has ended, hangs or does not reach Redis. "
            "`status` marks its figures as old; agents are not the cause."
        ),
        "Look at the driver and its log. A driver that has ended is shown for a minute.",
    )
    NO_BATCHES = "no-batches", "No stage of any query is measured yet.", "Wait for a batch."
    MIGRATION_RUNNING = (
        "migration-running",
        "A migration is running; an application has one at a time.",
        "Wait, or `rechannel stop`.",
    )
    OUTCOME_AWAITED = (
        "outcome-awaited",
        "The outcome of the last migration is not known yet.",
        "Wait for `migration.settle_batches` batches, ten minutes at most.",
    )


class SlowCause(Code):
    """Cause for the slowness of an executor, as far as agents measure it."""

    THROTTLED = (
        "throttled",
        "The CPU limit of its control group (container, systemd unit) stopped it for 5 % of the time or more.",
        "Raise the limit. Until then it gets less work.",
    )
    STOLEN = (
        "stolen",
        "The hypervisor gave 5 % or more of the CPU of its node to other machines.",
        (
            "Wait: Rechannel gives it less work only once most of the stored batches were slow. If it lasts, move the "
            "node to another host."
        ),
    )
    BUSY = (
        "busy",
        "The CPU of its node is used up. Processes other than the application's executors use a fifth of it or more.",
        (
            "Wait: Rechannel gives it less work only once most of the stored batches were slow. If it lasts, stop the "
            "other processes."
        ),
    )
    SLOW = (
        "slow",
        "None of these, or its agent reports no figures.",
        "Compare its node with others: CPU model, disk, memory. Until then it gets less work.",
    )


class Law(Code):
    """Rule that can refuse a move or a plan."""

    TARGET = (
        "target",
        "The target executor is unknown, gone, drained or being released.",
        "Nothing: the next decision takes it into account. A saved plan must be made again.",
    )
    QUERY_PROBLEM = (
        "query-problem",
        "The query is not active, or cannot be moved.",
        "See [problems that links report](#problems-that-links-report).",
    )
    RUN_UNKNOWN = (
        "run-unknown",
        "The run id of the query is unknown, and moves are valid for one run only.",
        "Wait for its next report.",
    )
    STORES_UNKNOWN = (
        "stores-unknown",
        "The stage or its state stores are unknown.",
        "Wait for a batch. If it lasts, the checkpoint's operator metadata cannot be read.",
    )
    PARTITION = (
        "partition",
        "The stage has no partition of this number.",
        "Make a new plan: this one is for another query or checkpoint.",
    )
    IN_FLIGHT = "in-flight", "This partition is being moved already.", "Wait."
    MAX_MOVES = (
        "max-moves",
        (
            "The plan has more moves than `migration.max_moves` and is cut to the heaviest ones. The others follow if "
            "the outcome is `confirmed` (trigger `continuation`)."
        ),
        "Nothing, or raise the limit.",
    )
    BUDGET = (
        "budget",
        "The plan has more moves than `reschedule.moves_per_hour` allows now.",
        "Wait until the time that the sentence gives. Operators' orders are not limited.",
    )
    UTILIZATION = (
        "utilization",
        (
            "An executor would be busier than `gate.max_utilization` and than today's busiest one. Not counted: "
            "queries that run back to back with a fixed number of rows."
        ),
        "Add executors: moving partitions is not enough.",
    )
    GATE = (
        "gate",
        (
            "The plan does not pay: its gain is too small or too uncertain (`gate.min_gain`), another query or its "
            "slowest batches could lose (`gate.max_loss`), or its cost exceeds the gain within `gate.horizon`."
        ),
        "Nothing. `--force` applies it anyway; a forced plan is not rolled back automatically.",
    )
    COOLDOWN = (
        "cooldown",
        (
            "The last migration ended less than `gate.cooldown` ago, and is not `confirmed`. After an automatic "
            "rollback the cool-down is longer, and the sentence says so."
        ),
        "Wait, or `--force`.",
    )
    PAUSED = "paused", "Everything is paused.", "`rechannel resume`."
    SCALE_OUT = (
        "scale-out",
        "The policy finds no room for all partitions on these executors.",
        "Add executors, or choose another policy.",
    )
    POLICY = (
        "policy",
        "The policy cannot handle its input, or broke its own rules.",
        "See the sentence. A broken rule is a defect: report it.",
    )
    EXCLUDED = (
        "excluded",
        "Nothing begins automatically in this period (`reschedule.excluded`).",
        "Nothing: operators can still give orders.",
    )
    AGREEMENTS = (
        "agreements",
        "A costly plan must be recommended twice in a row.",
        "Nothing, or `rechannel rebalance --apply` if you agree.",
    )
    REPETITION = (
        "repetition",
        "A plan like this one was rolled back, and neither the load nor the executors have changed since.",
        "Nothing, or `rechannel rebalance --apply` to begin it anyway.",
    )
    PLAN_EXPIRED = (
        "plan-expired",
        "The executors or the runs of queries have changed since the plan was saved.",
        "Make a new one with `rechannel plan --save`.",
    )
    WINDOW_PASSED = (
        "window-passed",
        "A scheduled plan could not begin within its period; the sentence gives the cause.",
        "Save a new plan, or choose a longer period.",
    )
    CANCELED = "canceled", "An operator canceled a scheduled plan or a rollback.", "Nothing."
    ROLLBACK = (
        "rollback",
        "No partition of that decision can be moved back.",
        "Nothing: `rechannel plan` shows what is better now.",
    )


class Scope(Code):
    """Part of a plan that a law refuses."""

    MOVE = "move", "One move."
    QUERY = "query", "All moves of one query."
    PLAN = "plan", "Whole plan."


class MoveState(Code):
    """State of a move; drawn in `rechannel.migration.moves`."""

    PLANNED = "planned", "The link has accepted the move.", "Nothing."
    PREPARED = "prepared", "The state can be loaded on another executor.", "Nothing."
    STEERED = (
        "steered",
        "Spark has the new executor as the location of the partition.",
        "Nothing. While a query has no batches, the move stays in this state.",
    )
    RELEASED_IDLE = (
        "released_idle",
        "Spark has the new location, but the query has no batches.",
        "Nothing: the next batch runs on the target.",
    )
    DRAINED = "drained", "A batch that ran on the target is committed: the partition has moved.", "Nothing."
    KILLED = "killed", "The copy of the state on the old executor is closed.", "Nothing."
    ABANDONED = "abandoned", "The move has ended; the partition stays where it is.", "See its reason."


class MoveReason(Code):
    """Cause of a transition of a move."""

    ACCEPTED = (
        "accepted",
        "A signed placement asks for the move, or the link itself does (new query, lost executor).",
        "Nothing.",
    )
    READY = "ready", "The newest snapshot is recent enough.", "Nothing."
    SNAPSHOT_LATE = (
        "snapshot-late",
        "No snapshot was recent enough after two maintenance intervals; the move goes on and replays more.",
        "If it happens often, shorten Spark's maintenance interval.",
    )
    LOCATION_SET = "location-set", "The link has given Spark the new location.", "Nothing."
    LOCATION_SET_AGAIN = (
        "location-set-again",
        "A batch ran the partition elsewhere, so the link has given Spark the location again.",
        "If it happens often, see `abandoned` by `deadline`.",
    )
    LANDED = "landed", "The partition ran on its target.", "Nothing."
    NO_BATCH = "no-batch", "The query is idle.", "Nothing."
    CLOSED = "closed", "The log of the old executor shows that it closed its copy.", "Nothing."
    EXECUTOR_GONE = "executor-gone", "The old executor is gone, and its copy with it.", "Nothing."
    PRESUMED = (
        "presumed",
        "Two maintenance intervals have passed, but no log line about the old copy was found.",
        "Nothing. With executors' logs at level INFO the line is found.",
    )
    DEADLINE = (
        "deadline",
        "Six batches ran the partition elsewhere, or `link.deadline` has passed.",
        (
            "Tasks drift to other executors: set a longer `spark.locality.wait`, or use fewer partitions for each "
            "core. Check that the target is not excluded or stalled."
        ),
    )
    SUPERSEDED = "superseded", "A newer placement differs, or the migration was stopped.", "Nothing."
    EXPIRED = "expired", "The placement was not renewed: no controller led for two minutes.", "Check the controllers."
    RUN_ENDED = "run-ended", "The query ended or was restarted.", "Nothing."
    TARGET_GONE = "target-gone", "The target executor is gone.", "Nothing: the next decision takes it into account."
    ALREADY_THERE = "already-there", "Spark already runs the partition on the target.", "Nothing."
    STORES_UNKNOWN = (
        "stores-unknown",
        "The names of the partition's state stores are unknown.",
        "Wait: the next decision tries again.",
    )
