"""Every setting of Rechannel, each in one place with its unit, bounds, default and reason.

Values come from, later wins: the defaults below, a TOML file, the environment
(``RECHANNEL_<SECTION>__<FIELD>``, e.g. ``RECHANNEL_REDIS__URL``). `load` reports every mistake at once.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import SplitResult, parse_qs, urlsplit

from rechannel.conf import timing
from rechannel.conf.address import SENTINEL_SCHEME, sentinel_address
from rechannel.conf.reading import POLICIES, build, read_environment, read_file, read_policies

CONFIG_VARIABLE = "RECHANNEL_CONFIG"


class SettingsError(ValueError):
    """The configuration cannot be used. ``mistakes`` names each field with what is wrong and the cure."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("configuration: " + "; ".join(self.mistakes))


def _setting(
    default: Any,
    reason: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    pattern: str = "",
) -> Any:
    return field(
        default=default,
        metadata={"reason": reason, "unit": unit, "low": low, "high": high, "choices": choices, "pattern": pattern},
    )


@dataclass(frozen=True)
class ClusterSettings:
    """Which cluster this is."""

    name: str = _setting(
        "default",
        "Separates clusters that share one Redis; part of every key.",
        pattern=r"[A-Za-z0-9._-]{1,64}",
    )


@dataclass(frozen=True)
class RedisSettings:
    """Where agents, links and controller meet."""

    url: str = _setting(
        "redis://127.0.0.1:6379/0",
        "Redis 7.0 or newer, or Valkey; sentinel://host:port,host:port/0?service=NAME asks sentinels for the master.",
        unit="redis://, rediss://, unix:// or sentinel:// URL without a password",
        pattern=r"(redis|rediss|unix|sentinel)://\S+",
    )
    username: str = _setting("", "ACL user; empty means Redis' default user.")
    password_file: str = _setting("", "A file that holds the password alone; a password in a URL ends up in logs.")
    tls_ca_file: str = _setting(
        "",
        "PEM of the CA that issued the server's certificate; trusted beside the system's own. For rediss://; turns TLS "
        "on for sentinel://.",
    )
    tls_certificate_file: str = _setting(
        "", "PEM of our own certificate, where the server wants one (tls-auth-clients)."
    )
    tls_key_file: str = _setting("", "PEM of its private key, without a pass phrase; nobody else may read it.")
    sentinel_username: str = _setting("", "ACL user of the sentinels themselves; empty means their default user.")
    sentinel_password_file: str = _setting("", "A file that holds the sentinels' own password alone, if they have one.")
    timeout: float = _setting(
        2.0,
        "A Redis slower than this is treated as away; with sentinels all of them together have as long to answer.",
        unit="seconds",
        low=0.05,
        high=60,
    )


@dataclass(frozen=True)
class SigningSettings:
    """Ed25519 keys: the controller signs desired placements, links check them."""

    private_key_file: str = _setting(
        "", "PEM; read by the controller alone, and refused if others may read it. Made by `rechannel config keys`."
    )
    public_key_file: str = _setting(
        "",
        "PEM of one key or several, or a directory of such; read by every link, and again when it changes. Without it "
        "a link obeys nobody, and a controller knows nothing of what another key has signed.",
    )


@dataclass(frozen=True)
class AgentSettings:
    """The monitor on every node."""

    node: str = _setting(
        "", "The host this node's executors carry in Spark (`--hostname`); empty: any name or address of this machine."
    )
    sample: float = _setting(1.0, "Processes live longer than this; finer costs CPU.", unit="seconds", low=0.1, high=60)
    window: float = _setting(5.0, "The window of the stream-classification paper.", unit="seconds", low=0.5, high=600)
    buffered_windows: int = _setting(
        120, "What an agent keeps while Redis is away: ten minutes.", unit="windows", low=1, high=10_000
    )
    metrics: str = _setting(
        "",
        "Where Prometheus may ask, as in 127.0.0.1:9417; anyone who can reach it can read. Empty: nowhere.",
        unit="host:port",
        pattern=r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}|",
    )
    stream_rows: int = _setting(
        20_000, "Map outputs reported per window; more are counted, not sent.", unit="rows", low=1, high=1_000_000
    )


@dataclass(frozen=True)
class LinkSettings:
    """The part inside the Spark driver."""

    directory: str = _setting("", "Event stream and journal; private to the user. Empty means a temporary directory.")
    poll: float = _setting(
        0.1, "How often the event stream is read while nothing is to be moved.", unit="seconds", low=0.005, high=5
    )
    poll_moving: float = _setting(
        0.005,
        "The same while partitions are to be moved: a batch boundary is short.",
        unit="seconds",
        low=0.001,
        high=1,
    )
    event_log_bytes: int = _setting(
        16 * 2**20, "A part of the event stream is deleted once read; this is its size.", unit="bytes", low=10 * 2**20
    )
    deadline_batches: int = _setting(
        6, "A move that has not landed after so many batches is abandoned.", unit="batches", low=1, high=1000
    )
    deadline_seconds: float = _setting(
        600.0, "The same in time, for queries that stand still.", unit="seconds", low=1, high=86_400
    )
    report: float = _setting(1.0, "How often the link reports what it sees.", unit="seconds", low=0.1, high=60)
    spread: bool = _setting(
        True,
        "Spread a new query after its first batch, put a restarted one back, spread what a lost executor held.",
    )


@dataclass(frozen=True)
class RescheduleSettings:
    """When the controller decides and whether it may act."""

    mode: str = _setting(
        "observe",
        "observe: decide and say so, move nothing unless an operator asks. apply: act on decisions.",
        choices=("observe", "apply"),
    )
    timeout: float = _setting(300.0, "Time between two decisions.", unit="seconds", low=1, high=86_400)
    settle: float = _setting(
        10.0,
        "Executors joined or lost are acted on once their set is stable for this long.",
        unit="seconds",
        low=0,
        high=3600,
    )
    policy: str = _setting(
        "adaptive",
        "Decides where partitions should be; `rechannel policies` lists all.",
        pattern=r"[a-z][a-z0-9-]*",
    )
    drain_policy: str = _setting(
        "fair-redistribution",
        "Decides where the partitions of drained nodes go; the others stay.",
        pattern=r"[a-z][a-z0-9-]*",
    )
    windows: int = _setting(
        3, "Agent windows averaged into one decision (three windows of five seconds).", unit="windows", low=1, high=60
    )
    batches: int = _setting(
        3, "A query with fewer measured batches is not decided on.", unit="batches", low=1, high=1000
    )
    coverage: float = _setting(
        0.95, "Least share of executors with fresh figures; below it nothing is decided.", unit="share", low=0, high=1
    )
    slow_ratio: float = _setting(
        1.25,
        "An executor whose tasks take so many times what others' take counts as slow (the inverse: as fast).",
        unit="times",
        low=1.05,
        high=100,
    )


@dataclass(frozen=True)
class GateSettings:
    """Whether moving pays. Never move for noise."""

    min_gain: float = _setting(
        0.10, "Least predicted gain in batch time; smaller ones are noise.", unit="share", low=0, high=1
    )
    min_step: float = _setting(
        0.03, "What a run of moves must save of the batch time to be part of a plan.", unit="share", low=0, high=0.99
    )
    horizon: float = _setting(
        600.0, "The time over which a migration must pay back.", unit="seconds", low=1, high=7 * 86_400
    )
    cooldown: float = _setting(300.0, "Rest after a migration before the next.", unit="seconds", low=0, high=86_400)
    move_cost: float = _setting(
        1.0, "What loading a partition takes beyond its bytes, until measured.", unit="seconds", low=0, high=3600
    )
    load_rate: float = _setting(
        50e6, "Bytes of state an executor loads per second, until measured.", unit="bytes/s", low=1e3, high=1e12
    )
    max_utilization: float = _setting(
        0.95, "A placement that lifts an executor above this is refused.", unit="share of its cores", low=0.05, high=10
    )


@dataclass(frozen=True)
class MigrationSettings:
    """How fast a placement is changed."""

    moves_per_executor: int = _setting(
        1, "Partitions an executor gives, and takes, in one step (batch).", unit="moves", low=1, high=1000
    )
    max_moves: int = _setting(200, "Moves in one migration; the rest waits.", unit="moves", low=1, high=100_000)
    moves_per_batch: int = _setting(
        32,
        "Partitions one batch of a query takes over at most; halved when such a batch lasts 1.5 times the median.",
        unit="moves",
        low=1,
        high=10_000,
    )
    bytes_per_batch: float = _setting(
        4e9, "The same in bytes of state; one partition alone may be larger.", unit="bytes", low=1e3, high=1e12
    )
    max_replay: int = _setting(
        100,
        "A partition is moved when its newest snapshot lies no further behind: its target loads that and replays the "
        "rest. Waited for no longer than two of Spark's maintenance intervals.",
        unit="batches",
        low=0,
        high=1_000_000,
    )
    overlap: bool = _setting(
        True,
        "Begin a step before the old copies of the one before are closed. Without: slower, and fewer copies at a time.",
    )
    settle_batches: int = _setting(
        5, "Batches after the last one moved that say what a migration brought.", unit="batches", low=1, high=1000
    )
    rollback: bool = _setting(
        True, "Move the partitions back where it made the batches longer. Never what an operator forced."
    )
    rollback_limit: float = _setting(
        0.25,
        "So much longer than predicted, and longer than before, a settled batch must be to count as a mistake.",
        unit="share",
        low=0.05,
        high=10,
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
    )
    require_reason: bool = _setting(False, "Refuse orders that come without --reason.")
    placement_ttl: float = _setting(
        120.0, "A desired placement not renewed for this long is no longer obeyed.", unit="seconds", low=5, high=3600
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
    """Read the settings from a file (or the one ``RECHANNEL_CONFIG`` names) and the environment.

    Raises SettingsError with every mistake found: unknown sections and fields, wrong types, values out of bounds.
    """
    environ = os.environ if environ is None else environ
    path = path or environ.get(CONFIG_VARIABLE) or None
    values: dict[str, dict[str, Any]] = {}
    mistakes: list[str] = []
    if path is not None:
        read_file(Path(path), values, mistakes)
    read_environment(environ, [item.name for item in dataclasses.fields(Settings)], values, mistakes)
    sections: dict[str, Any] = {}
    for section in dataclasses.fields(Settings):
        given = values.pop(section.name, {})
        if section.name == POLICIES:
            sections[section.name] = read_policies(given, mistakes)
        else:
            sections[section.name] = build(_section_class(section.name), section.name, given, mistakes)
    known = ", ".join(item.name for item in dataclasses.fields(Settings))
    mistakes += [f"[{name}]: no such section; known are {known}" for name in values]
    if mistakes:
        raise SettingsError(mistakes)
    settings = Settings(**sections)
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    mistakes = _check_address(settings.redis.url)
    mistakes += _tls_mistakes(settings.redis)
    if settings.agent.sample > settings.agent.window:
        mistakes.append("agent.sample: must not exceed agent.window, or a window holds no sample")
    mistakes += timing.mistakes(
        settings.controller.lease,
        settings.controller.observe,
        settings.redis.timeout,
        sentinels=settings.redis.url.startswith(SENTINEL_SCHEME),
    )
    if settings.link.poll_moving > settings.link.poll:
        mistakes.append("link.poll_moving: must not exceed link.poll")
    if mistakes:
        raise SettingsError(mistakes)


def _tls_mistakes(redis: RedisSettings) -> list[str]:
    mistakes = []
    address = _split(redis.url)
    if address and any(name.startswith("ssl_") for name in parse_qs(address.query, keep_blank_values=True)):
        mistakes.append("redis.url: TLS is set by redis.tls_ca_file and its neighbors, not by the URL")
    if bool(redis.tls_certificate_file) != bool(redis.tls_key_file):
        mistakes.append("redis.tls_certificate_file and redis.tls_key_file: set both, or neither")
    if redis.url.startswith(SENTINEL_SCHEME):
        if redis.tls_certificate_file and not redis.tls_ca_file:
            mistakes.append("redis.tls_ca_file: must be set too, for sentinels and Redis to be asked by TLS")
    elif not redis.url.startswith("rediss://"):
        given = [name for name in ("tls_ca_file", "tls_certificate_file", "tls_key_file") if getattr(redis, name)]
        mistakes += [f"redis.{name}: is set, but redis.url is no rediss:// URL" for name in given]
    return mistakes


def _check_address(url: str) -> list[str]:
    try:
        if sentinel_address(url) is not None:
            return []
    except ValueError as error:
        return [f"redis.url: {error}"]
    mistakes = []
    address = _split(url)
    if address is None:
        return ["redis.url: cannot be read as a URL; see to its brackets and to characters that are no ASCII"]
    try:
        _ = address.port
    except ValueError:
        mistakes.append("redis.url: its port is not a number from 0 to 65535")
    if address.password or "password" in parse_qs(address.query):
        mistakes.append("redis.url: holds a password; put it alone in a file and name that in redis.password_file")
    return mistakes


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:  # what it says may hold a password
        return None


def _section_class(name: str) -> type[Any]:
    kind: type[Any] = get_type_hints(Settings)[name]
    return kind


def describe() -> list[tuple[str, str, str, str, str]]:
    """List (field, default, unit, bounds, reason) of every setting but policies', for `config show` and the docs."""
    rows = []
    for section in dataclasses.fields(Settings):
        if section.name == POLICIES:
            continue
        for item in dataclasses.fields(_section_class(section.name)):
            rule = item.metadata
            if rule["choices"]:
                bounds = " | ".join(rule["choices"])
            else:
                low, high = rule["low"], rule["high"]
                bounds = (
                    ""
                    if low is None and high is None
                    else f"{'' if low is None else low} … {'' if high is None else high}"
                )
            default = str(item.default).lower() if isinstance(item.default, bool) else repr(item.default)
            rows.append((f"{section.name}.{item.name}", default, rule["unit"], bounds, rule["reason"]))
    return rows
