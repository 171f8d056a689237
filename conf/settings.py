"""Every setting of Rechannel, each in one place with its unit, bounds, default and reason.

Values come from, later wins: the defaults below, a TOML file, the environment
(``RECHANNEL_<SECTION>__<FIELD>``, e.g. ``RECHANNEL_REDIS__URL``). `load` reports every mistake at once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from rechannel.conf.sections import ClusterSettings as ClusterSettings
from rechannel.conf.sections import LinkSettings as LinkSettings
from rechannel.conf.sections import RedisSettings as RedisSettings
from rechannel.conf.sections import SigningSettings as SigningSettings
from rechannel.conf.sections import setting as _setting

CONFIG_VARIABLE = "RECHANNEL_CONFIG"
_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_DAYS = f"{_DAY}(?:-{_DAY})?"
PERIOD = rf"(?:({_DAYS}(?:,{_DAYS})*) )?((?:[01]\d|2[0-3]):[0-5]\d)-((?:[01]\d|2[0-3]):[0-5]\d|24:00)"


class SettingsError(ValueError):
    """The configuration cannot be used. ``mistakes`` names each field with what is wrong and the cure."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("configuration: " + "; ".join(self.mistakes))


@dataclass(frozen=True)
class AgentSettings:
    """The monitor on every node."""

    node: str = _setting(
        "", "The host this node's executors carry in Spark (`--hostname`); empty: any name or address of this machine."
    )
    sample: float = _setting(1.0, "Processes live longer than this; finer costs CPU.", unit="seconds", low=0.1, high=60)
    window: float = _setting(5.0, "The window of the stream-classification paper.", unit="seconds", low=0.5, high=600)
    buffered_windows: int = _setting(
        120, "What an agent keeps while Redis is away: ten minutes.", unit="windows", low=1, high=10_000, live=True
    )
    metrics: str = _setting(
        "",
        "Where Prometheus may ask, as in 127.0.0.1:9417; anyone who can reach it can read. Empty: nowhere.",
        unit="host:port",
        pattern=r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}|",
    )
    stream_rows: int = _setting(
        20_000,
        "Map outputs reported per window; more are counted, not sent.",
        unit="rows",
        low=1,
        high=1_000_000,
        live=True,
    )


@dataclass(frozen=True)
class RescheduleSettings:
    """When the controller decides and whether it may act."""

    mode: str = _setting(
        "observe",
        "observe: decide and say so, move nothing unless an operator asks. apply: act on decisions. Drains go on, and "
        "links spread new queries (link.spread), in both.",
        choices=("observe", "apply"),
        live=True,
    )
    timeout: float = _setting(300.0, "Time between two decisions.", unit="seconds", low=1, high=86_400, live=True)
    settle: float = _setting(
        10.0,
        "Executors joined or lost are acted on once their set is stable for this long.",
        unit="seconds",
        low=0,
        high=3600,
        live=True,
    )
    settle_windows: int = _setting(
        1,
        "The same in agent windows, where that is longer.",
        unit="windows",
        low=0,
        high=1000,
        live=True,
    )
    overload_utilization: float = _setting(
        0.95,
        "An executor busier than this is overloaded, and that is decided on at once.",
        unit="share of its cores",
        low=0.05,
        high=100,
        live=True,
    )
    overload_duration: float = _setting(
        2.0,
        "So is a query whose batch lasts this many times the median of its last batches, or longer than its trigger's "
        "interval where that is known.",
        unit="times",
        low=1.1,
        high=1000,
        live=True,
    )
    overload_windows: int = _setting(
        3,
        "Agent windows in a row for which it must be so, as a moment is no overload; 0 turns it off.",
        unit="windows",
        low=0,
        high=1000,
        live=True,
    )
    overload_release: float = _setting(
        0.85,
        "An overload is over, and counted again only then, below this share of its limit: no to and fro.",
        unit="share",
        low=0,
        high=1,
        live=True,
    )
    timeout_cooldown: float = _setting(
        0.0,
        "Least time between two decisions by timeout on one application; the timeout itself is one.",
        unit="seconds",
        low=0,
        high=7 * 86_400,
        live=True,
    )
    executors_cooldown: float = _setting(
        0.0,
        "The same for decisions because executors joined or left: a joined one is to get its share soon.",
        unit="seconds",
        low=0,
        high=7 * 86_400,
        live=True,
    )
    overload_cooldown: float = _setting(
        300.0,
        "The same for decisions because of overload: what the last one moved must show first.",
        unit="seconds",
        low=0,
        high=7 * 86_400,
        live=True,
    )
    excluded: tuple[str, ...] = _setting(
        (),
        "Nothing begins by itself in these periods; what an operator orders does, with a warning. In the environment "
        "with ; between them.",
        unit="periods as in Mon-Fri 09:00-18:00, or 22:00-06:00 for every day",
        pattern=PERIOD,
        live=True,
    )
    off_peak: tuple[str, ...] = _setting(
        (),
        "When `rechannel apply --when off-peak` does what it was given.",
        unit="periods as in Mon-Fri 09:00-18:00, or 22:00-06:00 for every day",
        pattern=PERIOD,
        live=True,
    )
    time_zone: str = _setting(
        "UTC",
        "In which these periods are meant, summer time included.",
        unit="name as in Europe/Berlin",
        live=True,
    )
    moves_per_hour: int = _setting(
        0,
        "Moves begun within any hour, all applications together; what is over it waits, what an operator orders does "
        "not. 0: as many as the other limits allow.",
        unit="moves",
        low=0,
        high=1_000_000,
        live=True,
    )
    agreements: int = _setting(
        2,
        "A costly plan is acted on when so many decisions in a row recommended it; an operator's is at once.",
        unit="decisions",
        low=1,
        high=100,
        live=True,
    )
    agreement_overlap: float = _setting(
        0.5,
        "They agree where this share of their moves is the same: the same partition to the same executor.",
        unit="share",
        low=0,
        high=1,
        live=True,
    )
    costly: float = _setting(
        30.0,
        "A plan is costly when it adds so much to the batches.",
        unit="seconds",
        low=0,
        high=86_400,
        live=True,
    )
    costly_share: float = _setting(
        0.75,
        "So is one that moves more than this share of the partitions.",
        unit="share",
        low=0,
        high=1,
        live=True,
    )
    policy: str = _setting(
        "adaptive",
        "Decides where partitions should be; `rechannel policies` lists all.",
        pattern=r"[a-z][a-z0-9-]*",
        live=True,
    )
    drain_policy: str = _setting(
        "fair-redistribution",
        "Decides where the partitions of drained nodes go; the others stay.",
        pattern=r"[a-z][a-z0-9-]*",
        live=True,
    )
    windows: int = _setting(
        3,
        "Agent windows averaged into one decision (three windows of five seconds).",
        unit="windows",
        low=1,
        high=60,
        live=True,
    )
    batches: int = _setting(
        3, "A query with fewer measured batches is not decided on.", unit="batches", low=1, high=1000, live=True
    )
    slow_ratio: float = _setting(
        1.25,
        "An executor whose tasks take so many times what others' take counts as slow (the inverse: as fast).",
        unit="times",
        low=1.05,
        high=100,
        live=True,
    )
    warm_up: float = _setting(
        120.0,
        "An executor added this recently, beside older ones, is not slow yet: its code is still being compiled.",
        unit="seconds",
        low=0,
        high=3600,
        live=True,
    )
    forecast: bool = _setting(
        True,
        "Decide on the load that is expected, where that was told better than by the last value. False: only shown.",
        live=True,
    )


@dataclass(frozen=True)
class GateSettings:
    """Whether moving pays. Never move for noise."""

    min_gain: float = _setting(
        0.10,
        "The critical path of a query must become so much shorter; less is noise. It is a part of the batch time.",
        unit="share",
        low=0,
        high=1,
        live=True,
    )
    min_step: float = _setting(
        0.03,
        "What a run of moves must save of the batch time to be part of a plan.",
        unit="share",
        low=0,
        high=0.99,
        live=True,
    )
    horizon: float = _setting(
        600.0, "The time over which a migration must pay back.", unit="seconds", low=1, high=7 * 86_400, live=True
    )
    cooldown: float = _setting(
        300.0, "Rest after a migration before the next.", unit="seconds", low=0, high=86_400, live=True
    )
    move_cost: float = _setting(
        1.0,
        "What loading a partition takes beyond its bytes, until measured.",
        unit="seconds",
        low=0,
        high=3600,
        live=True,
    )
    load_rate: float = _setting(
        50e6,
        "Bytes of state an executor loads per second, until measured.",
        unit="bytes/s",
        low=1e3,
        high=1e12,
        live=True,
    )
    max_utilization: float = _setting(
        0.95,
        "A placement that lifts an executor above this is refused.",
        unit="share of its cores",
        low=0.05,
        high=10,
        live=True,
    )


@dataclass(frozen=True)
class MigrationSettings:
    """How fast a placement is changed."""

    moves_per_executor: int = _setting(
        1, "Partitions an executor gives, and takes, in one step (batch).", unit="moves", low=1, high=1000, live=True
    )
    max_moves: int = _setting(
        200, "Moves in one migration; the rest waits.", unit="moves", low=1, high=100_000, live=True
    )
    moves_per_batch: int = _setting(
        32,
        "Partitions one batch of a query takes over at most; halved when such a batch lasts 1.5 times the median.",
        unit="moves",
        low=1,
        high=10_000,
        live=True,
    )
    bytes_per_batch: float = _setting(
        4e9,
        "The same in bytes of state; one partition alone may be larger.",
        unit="bytes",
        low=1e3,
        high=1e12,
        live=True,
    )
    max_replay: int = _setting(
        100,
        "A partition is moved when its newest snapshot lies no further behind: its target loads that and replays the "
        "rest. Waited for no longer than two of Spark's maintenance intervals.",
        unit="batches",
        low=0,
        high=1_000_000,
        live=True,
    )
    overlap: bool = _setting(
        True,
        "Begin a step before the old copies of the one before are closed. Without: slower, and fewer copies at a time.",
        live=True,
    )
    settle_batches: int = _setting(
        5,
        "Batches after the last one moved that say what a migration brought.",
        unit="batches",
        low=1,
        high=1000,
        live=True,
    )
    rollback: bool = _setting(
        True, "Move the partitions back where it made the batches longer. Never what an operator forced.", live=True
    )
    rollback_limit: float = _setting(
        0.25,
        "So much longer than predicted, and longer than before, a settled batch must be to count as a mistake.",
        unit="share",
        low=0.05,
        high=10,
        live=True,
    )


@dataclass(frozen=True)
class ControllerSettings:
    """The daemon that decides."""

    name: str = _setting("", "Identity in the lease; empty means host name and process id.")
    lease: float = _setting(
        15.0,
        "A leader silent for this long loses the lead; at least observe plus four times redis.timeout (six times with "
        "sentinels), and a hundredth more.",
        unit="seconds",
        low=1,
        high=600,
    )
    observe: float = _setting(
        1.0, "How often reports, requests and the lease are seen to.", unit="seconds", low=0.1, high=5
    )
    audit_file: str = _setting(
        "",
        "Orders are appended here as JSON lines, on the leader's machine. Those that cannot be written (a full disk) "
        "are refused: an order that nobody can trace is worse than none. Empty: no such file.",
        path=True,
    )
    require_reason: bool = _setting(False, "Refuse orders that come without --reason.", live=True)
    listen: str = _setting(
        "",
        "Where metrics, health and the web view are served over HTTP, as in 127.0.0.1:9418. There is no password: who "
        "can reach it can read, so keep it on loopback or behind a proxy. Empty: nowhere.",
        unit="host:port",
        pattern=r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}|",
    )
    placement_ttl: float = _setting(
        120.0,
        "A desired placement not renewed for this long is no longer obeyed.",
        unit="seconds",
        low=5,
        high=3600,
        live=True,
    )


@dataclass(frozen=True)
class Settings:
    """The whole tree; one attribute a TOML section.

    ``policies``: policy -> parameter -> value, out of ``[policies.NAME]``. Only the form is checked here; whether there
    is such a policy and such a parameter is known where the policies are (`rechannel config check`, the controller).
    """

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    redis: RedisSettings = field(default_factory=RedisSettings)
    signing: SigningSettings = field(default_factory=SigningSettings)
    agent: AgentSettings = field(default_factory=AgentSettings)
    link: LinkSettings = field(default_factory=LinkSettings)
    reschedule: RescheduleSettings = field(default_factory=RescheduleSettings)
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    gate: GateSettings = field(default_factory=GateSettings)
    migration: MigrationSettings = field(default_factory=MigrationSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)

    @property
    def node(self) -> str:
        """The host name of this node as Spark writes it."""
        return self.agent.node or socket.gethostname()


def load(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from a file and the environment.

    Without ``path``: the file that ``RECHANNEL_CONFIG`` names, else ./rechannel.toml, else
    /etc/rechannel/rechannel.toml. Raises SettingsError with every mistake found: unknown sections and fields, wrong
    types, values out of bounds.
    """
    from rechannel.conf.loader import read  # it makes what is defined here

    loaded = read(path, environ)
    if loaded.mistakes:
        raise SettingsError(loaded.located(loaded.mistakes))
    return loaded.settings


def section_class(name: str) -> type[Any]:
    """Return the class of a section."""
    kind: type[Any] = get_type_hints(Settings)[name]
    return kind
