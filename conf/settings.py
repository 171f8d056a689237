"""Every setting: its default, unit, bounds and reason, grouped by TOML section.

`rechannel.conf.loader.load` fills them from a file and the environment (``RECHANNEL_<SECTION>__<FIELD>``, for example
``RECHANNEL_REDIS__URL``).
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_type_hints

CONFIG_VARIABLE = "RECHANNEL_CONFIG"  # names the file
ENVIRONMENT_PREFIX = "RECHANNEL_"
_SAMPLE_INTERVAL = 1.0  # seconds between two samples of a node, at most
_WINDOW_SAMPLES = 5  # samples in a window, at least
_PLACEMENT_TTL = 120.0  # seconds
POLICIES = "policies"  # the section that holds a table for each policy
_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_DAYS = f"{_DAY}(?:-{_DAY})?"
PERIOD = rf"(?:({_DAYS}(?:,{_DAYS})*) )?((?:[01]\d|2[0-3]):[0-5]\d)-((?:[01]\d|2[0-3]):[0-5]\d|24:00)"


class SettingsError(ValueError):
    """An unusable configuration; each of ``errors`` names a setting and the cure."""

    def __init__(self, errors: Sequence[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("configuration: " + "; ".join(self.errors))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors,)  # an exception is pickled with its text otherwise


def setting(
    default: Any,
    reason: str,
    *,
    unit: str = "",
    bounds: tuple[float | None, float | None] = (None, None),
    allowed: str | tuple[str, ...] = "",
    path: bool = False,
) -> Any:
    """Define a setting that takes a restart to change; its metadata is its rule.

    Parameters
    ----------
    default, reason, unit
        The value without configuration, what the setting is for, and what its value counts.
    bounds
        Lowest and highest value of a number, both inclusive; None is unbounded.
    allowed
        The allowed texts, or a regular expression that the whole text must match.
    path
        The setting names a file; a relative path starts at the directory of the configuration file.
    """
    pattern, choices = (allowed, ()) if isinstance(allowed, str) else ("", allowed)
    properties = {"reason": reason, "unit": unit, "bounds": bounds, "choices": choices, "pattern": pattern}
    return field(default=default, metadata={**properties, "path": path, "live": False})


def live_setting(default: Any, reason: str, **properties: Any) -> Any:
    """Define a setting like `setting` that a controller applies on SIGHUP."""
    return field(default=default, metadata={**setting(default, reason, **properties).metadata, "live": True})


seconds, live_seconds = partial(setting, unit="seconds"), partial(live_setting, unit="seconds")
live_share = partial(live_setting, unit="share", bounds=(0, 1))
live_periods = partial(
    live_setting, (), unit="periods as in Mon-Fri 09:00-18:00, or 22:00-06:00 for every day", allowed=PERIOD
)
file = partial(setting, "", path=True)
address = partial(setting, "", unit="host:port", allowed=r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}|")


@dataclass(frozen=True)
class ClusterSettings:
    """Name of the cluster."""

    name: str = setting(
        "default", "Separates clusters that share one Redis; part of every key.", allowed=r"[A-Za-z0-9._-]{1,64}"
    )


@dataclass(frozen=True)
class RedisSettings:
    """Redis, through which agents, links and controller communicate."""

    url: str = setting(
        "redis://127.0.0.1:6379/0",
        "Redis 7.0 or newer, or Valkey. sentinel://host:port,host:port/0?service=NAME asks sentinels for the master.",
        unit="redis://, rediss://, unix:// or sentinel:// URL without user or password",
        allowed=r"(redis|rediss|unix|sentinel)://\S+",
    )
    username: str = setting("", "ACL user; empty means Redis' default user.")
    password_file: str = file("A file that holds the password alone; a password in a URL ends up in logs.")
    tls_ca_file: str = file(
        "PEM of the CA of the server's certificate, trusted in addition to those of the system. For rediss://; "
        "turns TLS on for sentinel://."
    )
    tls_certificate_file: str = file("PEM of the client certificate, if the server requires one (tls-auth-clients).")
    tls_key_file: str = file("PEM of its private key, without a pass phrase; other users must not be able to read it.")
    sentinel_username: str = setting("", "ACL user of the sentinels themselves; empty means their default user.")
    sentinel_password_file: str = file("A file that holds the sentinels' own password alone, if they have one.")
    timeout: float = seconds(
        2.0,
        "A Redis that is slower counts as not reachable; all sentinels together have the same time to answer.",
        bounds=(0.05, 60),
    )


@dataclass(frozen=True)
class SigningSettings:
    """Ed25519 keys: the controller signs desired placements, links verify them."""

    private_key_file: str = file(
        "PEM; only for the controller, and refused if other users can read it. Made by `rechannel config keys`."
    )
    public_key_file: str = file(
        "PEM of one or several keys, or a directory of such files; for every link, and reloaded when it changes. "
        "Without it a link follows no orders, and a controller cannot verify messages signed with other keys."
    )


@dataclass(frozen=True)
class AgentSettings:
    """Agent: the monitor on every node."""

    node: str = setting(
        "",
        "Host name of this node's executors in Spark (`--hostname`), or the node that their pods' environment names. "
        "Empty: any name or address of this machine.",
    )
    window: float = seconds(
        5.0, "Length of a measurement window; 5 s as in the stream-classification paper.", bounds=(0.5, 600)
    )
    metrics: str = address(
        "Address of the metrics endpoint for Prometheus, as in 127.0.0.1:9417, without access control. Empty: no "
        "endpoint."
    )

    @property
    def sample(self) -> float:
        """Seconds between two samples of the processes."""
        return min(_SAMPLE_INTERVAL, self.window / _WINDOW_SAMPLES)


@dataclass(frozen=True)
class LinkSettings:
    """Link: the part in the Spark driver."""

    directory: str = file(
        "Local directory of the event stream, private to the user; one that hangs delays the end of the driver. Empty "
        "means a temporary directory."
    )
    deadline: float = seconds(
        600.0,
        "A move that has not landed after this time is abandoned; it should be longer than the longest batch.",
        bounds=(1, 86_400),
    )
    spread: bool = setting(
        True,
        "What the link does on its own: spread a new query after its first batch, restore the placement of a restarted "
        "one, spread the partitions of a lost executor, and warm executors that join by a small job.",
    )


@dataclass(frozen=True)
class RescheduleSettings:
    """Triggers, policy and permission of the controller to act."""

    mode: str = live_setting(
        "observe",
        "observe: record decisions, but move only what an operator orders. apply: act on decisions. In both modes "
        "drains continue, and links spread new queries (link.spread).",
        allowed=("observe", "apply"),
    )
    timeout: float = live_seconds(300.0, "Time between two periodic decisions.", bounds=(1, 86_400))
    settle: float = live_seconds(
        2.0,
        "Time for which the set of executors must be stable before joined or lost executors trigger a decision: those "
        "that start together come within a second or two.",
        bounds=(0, 3600),
    )
    trigger_windows: int = live_setting(
        2,
        "How long an overload or an imbalance lasts before it triggers a decision: in agent windows for overloads of "
        "an executor, otherwise in batches. An executor is overloaded above gate.max_utilization, a query if its "
        "batches last twice as long as usual or longer than the interval of its trigger. An imbalance is one that "
        "could fall by gate.min_gain. 0 turns both triggers off.",
        unit="windows or batches",
        bounds=(0, 1000),
    )
    excluded: tuple[str, ...] = live_periods(
        "The controller begins nothing on its own in these periods; orders are carried out with a warning. "
        "Separated by ; in the environment."
    )
    off_peak: tuple[str, ...] = live_periods("Periods for `rechannel apply --when off-peak`.")
    time_zone: str = live_setting(
        "UTC", "Time zone of these periods, with daylight saving time.", unit="name as in Europe/Berlin"
    )
    moves_per_hour: int = live_setting(
        0,
        "Maximum moves begun within an hour, of all applications together; further moves wait, but orders of "
        "operators do not. 0: no such limit.",
        unit="moves",
        bounds=(0, 1_000_000),
    )
    policy: str = live_setting(
        "adaptive", "Policy that places partitions; `rechannel policies` lists all.", allowed=r"[a-z][a-z0-9-]*"
    )
    batches: int = live_setting(
        3, "Measured batches of a query that a decision needs.", unit="batches", bounds=(1, 1000)
    )


@dataclass(frozen=True)
class GateSettings:
    """Gate: a plan must gain more than it costs."""

    min_gain: float = live_share(
        0.05,
        "Minimum predicted reduction of a query's batch; half of it must hold at 95 % confidence.",
    )
    max_loss: float = live_setting(
        0.05,
        "A plan by which a query's mean batch could become longer by more than this, or its 95th percentile certainly "
        "would, at 95 % confidence, is refused.",
        unit="share",
        bounds=(0, 10),
    )
    max_residual: float = live_setting(
        0.15,
        "No decision while the replay of the present placement differs from the measured batches of a query by more, "
        "and by more than two standard errors.",
        unit="share",
        bounds=(0.01, 10),
    )
    horizon: float = live_seconds(600.0, "Time within which a migration must pay off.", bounds=(1, 7 * 86_400))
    cooldown: float = live_seconds(
        300.0,
        "Minimum time between two migrations, unless the outcome of the first one is confirmed earlier.",
        bounds=(0, 86_400),
    )
    max_utilization: float = live_setting(
        0.95,
        "A placement that raises the utilization of an executor above this is refused; queries without a trigger whose "
        "batches have a fixed number of rows are not counted. An executor above it is overloaded, which triggers a "
        "decision.",
        unit="share of its cores",
        bounds=(0.05, 10),
    )


@dataclass(frozen=True)
class MigrationSettings:
    """Speed and safety of migrations."""

    moves_per_executor: int = live_setting(
        1,
        "Partitions that an executor gives, and that it takes, in one step (batch); those of a lost executor are one "
        "step.",
        unit="moves",
        bounds=(1, 1000),
    )
    max_moves: int = live_setting(
        200,
        "Maximum moves in one migration; further moves wait. The bound is what fits into one message.",
        unit="moves",
        bounds=(1, 50_000),
    )
    moves_per_batch: int = live_setting(
        32,
        "Maximum moves of a query in one batch; halved if such a batch lasts 1.5 times the median.",
        unit="moves",
        bounds=(1, 10_000),
    )
    overlap: bool = live_setting(
        True,
        "Begin a step before the old copies of the previous step are closed. False: slower, with fewer copies at a "
        "time.",
    )
    settle_batches: int = live_setting(
        5, "Batches after a migration from which its result is measured.", unit="batches", bounds=(1, 1000)
    )
    rollback: bool = live_setting(
        True, "Move partitions back if a migration made batches longer; not if an operator forced it."
    )


@dataclass(frozen=True)
class ControllerSettings:
    """Controller: lease, orders and HTTP endpoint."""

    name: str = setting("", "Identity in the lease; empty means host name and process id.")
    lease: float = seconds(
        15.0,
        "Time after which a leader that does not renew its lease loses the lead; at least a second plus four "
        "times redis.timeout (six times with sentinels), plus 1 %.",
        bounds=(3, 600),
    )
    audit_file: str = file(
        "Audit log of orders as JSON lines, on the leader's machine. Orders that cannot be logged (for example "
        "because the disk is full) are refused. Empty: no audit log."
    )
    require_reason: bool = live_setting(False, "Refuse orders that come without --reason.")
    listen: str = address(
        "HTTP address of metrics, health and the web view, as in 127.0.0.1:9418. It has no access control, so use "
        "loopback or a proxy. Empty: no endpoint."
    )

    @property
    def placement_ttl(self) -> float:
        """Seconds after which links ignore a placement that is not renewed."""
        return max(_PLACEMENT_TTL, 2 * self.lease)


@dataclass(frozen=True)
class Settings:
    """All settings; each attribute is a TOML section.

    ``policies`` maps policy and parameter to a value, from ``[policies.NAME]``. Names of policies and parameters are
    checked by `rechannel config check` and the controller, which know the policies.
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
        """The host name of this node as in Spark."""
        return self.agent.node or socket.gethostname()


def section_class(name: str) -> type[Any]:
    """Return the class of a section."""
    kind: type[Any] = get_type_hints(Settings)[name]
    return kind


def fields() -> dict[str, dataclasses.Field[Any]]:
    """Return every setting except parameters of policies, by a name such as ``gate.min_gain``."""
    return {
        f"{section.name}.{item.name}": item
        for section in dataclasses.fields(Settings)
        if section.name != POLICIES
        for item in dataclasses.fields(section_class(section.name))
    }
