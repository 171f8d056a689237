"""Every setting of Rechannel: its default, unit, bounds and reason, grouped by TOML section.

`rechannel.conf.loader.load` fills them from a file and the environment (``RECHANNEL_<SECTION>__<FIELD>``, for example
``RECHANNEL_REDIS__URL``).
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

CONFIG_VARIABLE = "RECHANNEL_CONFIG"  # names the file
ENVIRONMENT_PREFIX = "RECHANNEL_"
POLICIES = "policies"  # the section that holds a table for each policy
_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_DAYS = f"{_DAY}(?:-{_DAY})?"
PERIOD = rf"(?:({_DAYS}(?:,{_DAYS})*) )?((?:[01]\d|2[0-3]):[0-5]\d)-((?:[01]\d|2[0-3]):[0-5]\d|24:00)"


class SettingsError(ValueError):
    """An unusable configuration. Each of ``errors`` names a field, what is wrong with it and the cure."""

    def __init__(self, errors: Sequence[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("configuration: " + "; ".join(self.errors))


def setting(
    default: Any,
    reason: str,
    *,
    unit: str = "",
    bounds: tuple[float | None, float | None] = (None, None),
    choices: Sequence[str] = (),
    pattern: str = "",
    live: bool = False,
    path: bool = False,
) -> Any:
    """Define a field of a section; its metadata holds the properties.

    Parameters
    ----------
    default, reason, unit
        The value without configuration, what the field is for, and what its value counts.
    bounds
        Lowest and highest value of a number, both inclusive; None is unbounded.
    choices, pattern
        The texts that are allowed, or a regular expression that the whole text must match.
    live
        Controller and agent apply a new value on SIGHUP; other fields take a restart.
    path
        The field names a file; a relative path starts at the directory of the configuration file.
    """
    properties = {"reason": reason, "unit": unit, "bounds": bounds, "choices": choices, "pattern": pattern}
    return field(default=default, metadata={**properties, "live": live, "path": path})


live_setting = functools.partial(setting, live=True)


@dataclass(frozen=True)
class ClusterSettings:
    """Which cluster this is."""

    name: str = setting(
        "default", "Separates clusters that share one Redis; part of every key.", pattern=r"[A-Za-z0-9._-]{1,64}"
    )


@dataclass(frozen=True)
class RedisSettings:
    """Where agents, links and controller meet."""

    url: str = setting(
        "redis://127.0.0.1:6379/0",
        "Redis 7.0 or newer, or Valkey; sentinel://host:port,host:port/0?service=NAME asks sentinels for the master.",
        unit="redis://, rediss://, unix:// or sentinel:// URL without a password",
        pattern=r"(redis|rediss|unix|sentinel)://\S+",
    )
    username: str = setting("", "ACL user; empty means Redis' default user.")
    password_file: str = setting(
        "", "A file that holds the password alone; a password in a URL ends up in logs.", path=True
    )
    tls_ca_file: str = setting(
        "",
        "PEM of the CA that issued the server's certificate; trusted beside the system's own. For rediss://; turns TLS "
        "on for sentinel://.",
        path=True,
    )
    tls_certificate_file: str = setting(
        "", "PEM of our own certificate, where the server wants one (tls-auth-clients).", path=True
    )
    tls_key_file: str = setting(
        "", "PEM of its private key, without a pass phrase; nobody else may read it.", path=True
    )
    sentinel_username: str = setting("", "ACL user of the sentinels themselves; empty means their default user.")
    sentinel_password_file: str = setting(
        "", "A file that holds the sentinels' own password alone, if they have one.", path=True
    )
    timeout: float = setting(
        2.0,
        "A Redis slower than this is treated as away; with sentinels all of them together have as long to answer.",
        unit="seconds",
        bounds=(0.05, 60),
    )


@dataclass(frozen=True)
class SigningSettings:
    """Ed25519 keys: the controller signs desired placements, links check them."""

    private_key_file: str = setting(
        "",
        "PEM; read by the controller alone, and refused if others may read it. Made by `rechannel config keys`.",
        path=True,
    )
    public_key_file: str = setting(
        "",
        "PEM of one key or several, or a directory of such; read by every link, and again when it changes. Without it "
        "a link obeys nobody, and a controller knows nothing of what another key has signed.",
        path=True,
    )


@dataclass(frozen=True)
class AgentSettings:
    """The monitor on every node."""

    node: str = setting(
        "", "The host this node's executors carry in Spark (`--hostname`); empty: any name or address of this machine."
    )
    sample: float = setting(1.0, "Processes live longer than this; finer costs CPU.", unit="seconds", bounds=(0.1, 60))
    window: float = setting(5.0, "The window of the stream-classification paper.", unit="seconds", bounds=(0.5, 600))
    buffered_windows: int = live_setting(
        120, "What an agent keeps while Redis is away: ten minutes.", unit="windows", bounds=(1, 10_000)
    )
    metrics: str = setting(
        "",
        "Where Prometheus may ask, as in 127.0.0.1:9417; anyone who can reach it can read. Empty: nowhere.",
        unit="host:port",
        pattern=r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}|",
    )
    stream_rows: int = live_setting(
        20_000, "Map outputs reported per window; more are counted, not sent.", unit="rows", bounds=(1, 1_000_000)
    )


@dataclass(frozen=True)
class LinkSettings:
    """The part inside the Spark driver."""

    directory: str = setting("", "Event stream; private to the user. Empty means a temporary directory.", path=True)
    poll: float = setting(
        0.1, "How often the event stream is read while nothing is to be moved.", unit="seconds", bounds=(0.005, 5)
    )
    poll_moving: float = setting(
        0.005,
        "The same while partitions are to be moved: a batch boundary is short.",
        unit="seconds",
        bounds=(0.001, 1),
    )
    event_log_bytes: int = setting(
        16 * 2**20,
        "A part of the event stream is deleted once read; this is its size.",
        unit="bytes",
        bounds=(10 * 2**20, None),
    )
    deadline_batches: int = setting(
        6, "A move that has not landed after so many batches is abandoned.", unit="batches", bounds=(1, 1000)
    )
    deadline_seconds: float = setting(
        600.0, "The same in time, for queries that stand still.", unit="seconds", bounds=(1, 86_400)
    )
    report: float = setting(1.0, "How often the link reports what it sees.", unit="seconds", bounds=(0.1, 60))
    spread: bool = setting(
        True, "Spread a new query after its first batch, put a restarted one back, spread what a lost executor held."
    )


@dataclass(frozen=True)
class RescheduleSettings:
    """When the controller decides and whether it may act."""

    mode: str = live_setting(
        "observe",
        "observe: decide and say so, move nothing unless an operator asks. apply: act on decisions. Drains go on, and "
        "links spread new queries (link.spread), in both.",
        choices=("observe", "apply"),
    )
    timeout: float = live_setting(300.0, "Time between two decisions.", unit="seconds", bounds=(1, 86_400))
    settle: float = live_setting(
        10.0,
        "Executors joined or lost are acted on once their set is stable for this long.",
        unit="seconds",
        bounds=(0, 3600),
    )
    settle_windows: int = live_setting(
        1, "The same in agent windows, where that is longer.", unit="windows", bounds=(0, 1000)
    )
    overload_utilization: float = live_setting(
        0.95,
        "An executor busier than this is overloaded, and that is decided on at once.",
        unit="share of its cores",
        bounds=(0.05, 100),
    )
    overload_duration: float = live_setting(
        2.0,
        "So is a query whose batch lasts this many times the median of its last batches, or longer than its trigger's "
        "interval where that is known.",
        unit="times",
        bounds=(1.1, 1000),
    )
    overload_windows: int = live_setting(
        3,
        "Agent windows in a row for which it must be so, as a moment is no overload; 0 turns it off.",
        unit="windows",
        bounds=(0, 1000),
    )
    overload_release: float = live_setting(
        0.85,
        "An overload is over, and counted again only then, below this share of its limit: no to and fro.",
        unit="share",
        bounds=(0, 1),
    )
    timeout_cooldown: float = live_setting(
        0.0,
        "Least time between two decisions by timeout on one application; the timeout itself is one.",
        unit="seconds",
        bounds=(0, 7 * 86_400),
    )
    executors_cooldown: float = live_setting(
        0.0,
        "The same for decisions because executors joined or left: a joined one is to get its share soon.",
        unit="seconds",
        bounds=(0, 7 * 86_400),
    )
    overload_cooldown: float = live_setting(
        300.0,
        "The same for decisions because of overload: what the last one moved must show first.",
        unit="seconds",
        bounds=(0, 7 * 86_400),
    )
    excluded: tuple[str, ...] = live_setting(
        (),
        "Nothing begins by itself in these periods; what an operator orders does, with a warning. In the environment "
        "with ; between them.",
        unit="periods as in Mon-Fri 09:00-18:00, or 22:00-06:00 for every day",
        pattern=PERIOD,
    )
    off_peak: tuple[str, ...] = live_setting(
        (),
        "When `rechannel apply --when off-peak` does what it was given.",
        unit="periods as in Mon-Fri 09:00-18:00, or 22:00-06:00 for every day",
        pattern=PERIOD,
    )
    time_zone: str = live_setting(
        "UTC", "In which these periods are meant, summer time included.", unit="name as in Europe/Berlin"
    )
    moves_per_hour: int = live_setting(
        0,
        "Moves begun within any hour, all applications together; what is over it waits, what an operator orders does "
        "not. 0: as many as the other limits allow.",
        unit="moves",
        bounds=(0, 1_000_000),
    )
    agreements: int = live_setting(
        2,
        "A costly plan is acted on when so many decisions in a row recommended it; an operator's is at once.",
        unit="decisions",
        bounds=(1, 100),
    )
    agreement_overlap: float = live_setting(
        0.5,
        "They agree where this share of their moves is the same: the same partition to the same executor.",
        unit="share",
        bounds=(0, 1),
    )
    costly: float = live_setting(
        30.0, "A plan is costly when it adds so much to the batches.", unit="seconds", bounds=(0, 86_400)
    )
    costly_share: float = live_setting(
        0.75, "So is one that moves more than this share of the partitions.", unit="share", bounds=(0, 1)
    )
    policy: str = live_setting(
        "adaptive", "Decides where partitions should be; `rechannel policies` lists all.", pattern=r"[a-z][a-z0-9-]*"
    )
    drain_policy: str = live_setting(
        "fair-redistribution",
        "Decides where the partitions of drained nodes go; the others stay.",
        pattern=r"[a-z][a-z0-9-]*",
    )
    windows: int = live_setting(
        3, "Agent windows averaged into one decision (three windows of five seconds).", unit="windows", bounds=(1, 60)
    )
    batches: int = live_setting(
        3, "A query with fewer measured batches is not decided on.", unit="batches", bounds=(1, 1000)
    )
    slow_ratio: float = live_setting(
        1.25,
        "An executor whose tasks take so many times what others' take counts as slow (the inverse: as fast).",
        unit="times",
        bounds=(1.05, 100),
    )
    warm_up: float = live_setting(
        120.0,
        "An executor added this recently, beside older ones, is not slow yet: its code is still being compiled.",
        unit="seconds",
        bounds=(0, 3600),
    )
    forecast: bool = live_setting(
        True,
        "Decide on the load that is expected, where that was told better than by the last value. False: only shown.",
    )


@dataclass(frozen=True)
class GateSettings:
    """Whether moving pays. Never move for noise."""

    min_gain: float = live_setting(
        0.10,
        "The critical path of a query must become so much shorter; less is noise. It is a part of the batch time.",
        unit="share",
        bounds=(0, 1),
    )
    min_step: float = live_setting(
        0.03, "What a run of moves must save of the batch time to be part of a plan.", unit="share", bounds=(0, 0.99)
    )
    horizon: float = live_setting(
        600.0, "The time over which a migration must pay back.", unit="seconds", bounds=(1, 7 * 86_400)
    )
    cooldown: float = live_setting(300.0, "Rest after a migration before the next.", unit="seconds", bounds=(0, 86_400))
    move_cost: float = live_setting(
        1.0, "What loading a partition takes beyond its bytes, until measured.", unit="seconds", bounds=(0, 3600)
    )
    load_rate: float = live_setting(
        50e6, "Bytes of state an executor loads per second, until measured.", unit="bytes/s", bounds=(1e3, 1e12)
    )
    max_utilization: float = live_setting(
        0.95, "A placement that lifts an executor above this is refused.", unit="share of its cores", bounds=(0.05, 10)
    )


@dataclass(frozen=True)
class MigrationSettings:
    """How fast a placement is changed."""

    moves_per_executor: int = live_setting(
        1, "Partitions an executor gives, and takes, in one step (batch).", unit="moves", bounds=(1, 1000)
    )
    max_moves: int = live_setting(200, "Moves in one migration; the rest waits.", unit="moves", bounds=(1, 100_000))
    moves_per_batch: int = live_setting(
        32,
        "Partitions one batch of a query takes over at most; halved when such a batch lasts 1.5 times the median.",
        unit="moves",
        bounds=(1, 10_000),
    )
    bytes_per_batch: float = live_setting(
        4e9, "The same in bytes of state; one partition alone may be larger.", unit="bytes", bounds=(1e3, 1e12)
    )
    max_replay: int = live_setting(
        100,
        "A partition is moved when its newest snapshot lies no further behind: its target loads that and replays the "
        "rest. Waited for no longer than two of Spark's maintenance intervals.",
        unit="batches",
        bounds=(0, 1_000_000),
    )
    overlap: bool = live_setting(
        True,
        "Begin a step before the old copies of the one before are closed. Without: slower, and fewer copies at a time.",
    )
    settle_batches: int = live_setting(
        5, "Batches after the last one moved that say what a migration brought.", unit="batches", bounds=(1, 1000)
    )
    rollback: bool = live_setting(
        True, "Move the partitions back where it made the batches longer. Never what an operator forced."
    )
    rollback_limit: float = live_setting(
        0.25,
        "So much longer than predicted, and longer than before, a settled batch must be to count as a mistake.",
        unit="share",
        bounds=(0.05, 10),
    )


@dataclass(frozen=True)
class ControllerSettings:
    """The daemon that decides."""

    name: str = setting("", "Identity in the lease; empty means host name and process id.")
    lease: float = setting(
        15.0,
        "A leader silent for this long loses the lead; at least observe plus four times redis.timeout (six times with "
        "sentinels), and a hundredth more.",
        unit="seconds",
        bounds=(1, 600),
    )
    observe: float = setting(
        1.0, "How often reports, requests and the lease are seen to.", unit="seconds", bounds=(0.1, 5)
    )
    audit_file: str = setting(
        "",
        "Orders are appended here as JSON lines, on the leader's machine. Those that cannot be written (a full disk) "
        "are refused: an order that nobody can trace is worse than none. Empty: no such file.",
        path=True,
    )
    require_reason: bool = live_setting(False, "Refuse orders that come without --reason.")
    listen: str = setting(
        "",
        "Where metrics, health and the web view are served over HTTP, as in 127.0.0.1:9418. There is no password: who "
        "can reach it can read, so keep it on loopback or behind a proxy. Empty: nowhere.",
        unit="host:port",
        pattern=r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}|",
    )
    placement_ttl: float = live_setting(
        120.0, "A desired placement not renewed for this long is no longer obeyed.", unit="seconds", bounds=(5, 3600)
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


def section_class(name: str) -> type[Any]:
    """Return the class of a section."""
    kind: type[Any] = get_type_hints(Settings)[name]
    return kind
