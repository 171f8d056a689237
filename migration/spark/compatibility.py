"""Which of an application's own Spark settings change what Rechannel can do, in plain words.

Pure: settings in, findings out. A stock Spark gives none. What Spark does under each setting was read in the class that
the comments name (4.3.0); `docs/compatibility.md` tells it at length.

Left out, because they change nothing: adaptive execution (``InsertAdaptiveSparkPlan`` passes over every streaming plan
with a stateful operator, whatever the settings say) and ``spark.scheduler.mode`` (it orders jobs, not their places).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rechannel.migration.spark import versions

DATABRICKS_ONLY = "spark.sql.streaming.statefulOperator.stateRebalancing.enabled"

BYPASS = "spark.shuffle.sort.bypassMergeThreshold"
CURE = f"Set {BYPASS} to 0 before the application starts."

LONG_WAIT = 30.0  # seconds; ten times Spark's default
LONG_MAINTENANCE = 600.0  # seconds; ten times Spark's default

_STATE = "org.apache.spark.sql.execution.streaming.state"
_HDFS_BACKED = f"{_STATE}.HDFSBackedStateStoreProvider"
_PROVIDERS = (_HDFS_BACKED, f"{_STATE}.RocksDBStateStoreProvider")
# Spark's short names are read in any case (ShuffleManager), its class names are not.
_SHORT_SHUFFLE_MANAGERS = ("sort", "tungsten-sort")
_SHUFFLE_MANAGER = "org.apache.spark.shuffle.sort.SortShuffleManager"
_SHUFFLE_IO = (
    "org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO",
    "org.apache.spark.shuffle.KubernetesLocalDiskShuffleDataIO",  # the same writer, with recovery on start
)
# With the defaults of Spark. They matter beside what only the cluster knows: how long stages last, its cores.
ALWAYS_TOLD = {"spark.locality.wait": "3s", "spark.task.cpus": "1", "spark.scheduler.mode": "FIFO"}
_LONGEST = 500  # characters of a value
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

_Read = Callable[[str, str], str]


@dataclass(frozen=True)
class Finding:
    """A setting that changes what Rechannel can do. ``sentence`` says what it means and what to do about it."""

    code: str
    setting: str
    value: str
    sentence: str


def examine(read: _Read) -> list[Finding]:
    """Look at every setting that matters; ``read(key, default)`` returns one as text.

    A value that Spark itself could not read is passed over. Every default asked with is one Spark accepts for that
    key: ``SQLConf.getConfString`` refuses a default that its entry cannot convert.
    """
    return [*_places(read), *_executors(read), *_waits(read), *_stores(read), *_shuffle(read)]


def advice(read: _Read) -> list[Finding]:
    """Look at what Spark itself may do to a query, Rechannel or not: worth telling once, and no problem of the link."""
    # SortShuffleWriter.shouldBypassMergeSort takes the writer for shuffles to at most so many partitions.
    value = read(BYPASS, "200")
    try:
        bypassing = int(value) > 0
    except ValueError:
        return []
    if not bypassing or _other_shuffle_manager(read("spark.shuffle.manager", "sort").strip()):
        return []
    return [
        Finding(
            "bypass-merge",
            BYPASS,
            value,
            f"{BYPASS}={value}: when an executor is ended by SIGTERM in the middle of a batch (worker stopped, pod "
            f"deleted, node preempted), Spark itself may lose rows of shuffles to at most {value} partitions, and no "
            f"task fails (SPARK-37473; `drain --remove` is safe). {CURE}",
        )
    ]


def sentences(version: str, read: _Read) -> list[str]:
    """Return what is to be said at attach: of this Spark itself, and of its settings."""
    return [*versions.problems(version), *(finding.sentence for finding in examine(read))]


def told(read: _Read) -> dict[str, str]:
    """Return the settings that matter and are not at their default, for `rechannel doctor`; some are always told.

    `examine` finds in them what it finds in the originals. Bounded in number and length.
    """
    found: dict[str, str] = {}

    def noting(key: str, default: str) -> str:
        value = read(key, default)
        if value != default:
            found[key] = value[:_LONGEST]
        return value

    always = {key: read(key, default)[:_LONGEST] for key, default in ALWAYS_TOLD.items()}
    examine(noting)
    advice(noting)
    return always | found


def _places(read: _Read) -> list[Finding]:
    """Look at what puts a task elsewhere than its partition was steered to."""
    found = []
    master = read("spark.master", "").strip()
    if master.startswith("local") and not master.startswith("local-cluster"):
        found.append(
            Finding(
                "local-master",
                "spark.master",
                master,
                f"spark.master={master} runs every task in the driver: there is no second executor to move to. "
                "Use a cluster.",
            )
        )
    key = "spark.speculation"
    if _on(read, key):
        # TaskSetManager.dequeueTaskFromList: a copy goes to a host where the task has no attempt yet.
        found.append(
            Finding(
                "speculation",
                key,
                "true",
                "spark.speculation runs a copy of a slow task on another host, and a copy may leave its partition "
                "there or overwrite a steer: moves may miss and are tried again. "
                "Switch spark.speculation off for stateful queries.",
            )
        )
    for key in (
        "spark.excludeOnFailure.enabled",
        "spark.excludeOnFailure.application.enabled",
        "spark.excludeOnFailure.taskAndStage.enabled",
    ):
        if _on(read, key):
            found.append(
                Finding(
                    "exclude-on-failure",
                    key,
                    "true",
                    f"{key} keeps tasks off executors that had failures, and Rechannel does not see which: moves to "
                    "one miss, and its partitions run elsewhere meanwhile. "
                    f"If moves keep missing, look for excluded executors in Spark's UI or switch {key} off.",
                )
            )
    return found


def _executors(read: _Read) -> list[Finding]:
    """Look at what takes executors away."""
    found = []
    key = "spark.dynamicAllocation.enabled"
    if _on(read, key):
        # ExecutorMonitor counts tasks, cached blocks and shuffles; SparkContext.killExecutors refuses.
        found.append(
            Finding(
                "dynamic-allocation",
                key,
                "true",
                "spark.dynamicAllocation.enabled lets Spark remove idle executors, and a state store does not keep one "
                "alive: its partitions land anywhere and are placed again. Releasing drained executors is then Spark's "
                "own business; set spark.dynamicAllocation.minExecutors to what the state needs, or switch it off.",
            )
        )
    key = "spark.decommission.enabled"
    if _on(read, key):
        found.append(
            Finding(
                "decommission",
                key,
                "true",
                "spark.decommission.enabled lets the cluster retire executors: a retiring one gets no more tasks, its "
                "state is not handed over, and nothing is placed on it. Its partitions land anywhere, load from the "
                "checkpoint and are placed again. `drain --remove` releases executors only while no query runs a "
                "batch.",
            )
        )
        key = "spark.storage.decommission.enabled"
        if not _on(read, key):
            # BlockManagerDecommissioner moves RDD and shuffle blocks, if this is on; never state.
            found.append(
                Finding(
                    "decommission-storage",
                    key,
                    "false",
                    "spark.storage.decommission.enabled is off while executors may be retired: map output dies with "
                    "the executor, and the running batch repeats it. Switch spark.storage.decommission.enabled on.",
                )
            )
    return found


def _waits(read: _Read) -> list[Finding]:
    """Look at how long a task waits for the executor it prefers, and then for that executor's host."""
    base = "spark.locality.wait"
    base_value = read(base, "3s")
    found: dict[tuple[str, str], Finding] = {}
    for level in ("process", "node"):
        own = read(f"{base}.{level}", "")
        key, value = (f"{base}.{level}", own) if own else (base, base_value)
        wait = seconds(value)
        if wait is None:
            continue
        # A wait of 0 at the level of nodes only skips the host's other executors: the steer itself is not touched.
        if wait <= 0 and level == "process":
            # TaskSchedulerImpl.resourceOffers tries preferred executors first, then at once all others.
            found[key, "zero"] = Finding(
                "locality-wait-zero",
                key,
                value,
                f"{key}={value}: a task whose executor has no free core runs at once on any other, so a move lands "
                "only where the target is free when the stage begins, and partitions wander. "
                f"Set {key} to 3s, the default.",
            )
        if wait > LONG_WAIT:
            found[key, "long"] = Finding(
                "locality-wait-long",
                key,
                value,
                f"{key}={value}: a task waits that long for a busy or stalled executor while others idle, and holds "
                f"its batch up, right after a move too. Set {key} to a few seconds.",
            )
    return list(found.values())


def _stores(read: _Read) -> list[Finding]:
    """Look at how Spark keeps state."""
    found = []
    key = "spark.sql.streaming.stateStore.unloadOnCommit"
    if _on(read, key):
        # StateStore.getStateStoreProvider then reports nothing to the coordinator, and no maintenance runs.
        found.append(
            Finding(
                "unload-on-commit",
                key,
                "true",
                f"{key} closes every store after each batch, and executors no longer say where one was: partitions "
                "nobody steered run anywhere, steered ones stay. Moving then balances load and saves no state load; "
                "switch it off where loading state is what costs.",
            )
        )
    key = "spark.sql.streaming.stateStore.maintenanceInterval"
    value = read(key, "60s")
    wait = seconds(value)
    if wait is not None and wait > LONG_MAINTENANCE:
        found.append(
            Finding(
                "maintenance-long",
                key,
                value,
                f"{key}={value}: the old copy of a moved partition may keep its memory that long, and is presumed "
                f"closed only after twice that. Set {key} to a minute or so.",
            )
        )
    key = "spark.sql.streaming.stateStore.providerClass"
    value = read(key, _HDFS_BACKED).strip()
    if value and value not in _PROVIDERS:
        found.append(
            Finding(
                "store-provider",
                key,
                value,
                f"{key}={value} has not been tried: moves are attempted, but whether state loads on another executor "
                "is up to that provider. Try it on a test cluster, or use one of Spark's own two.",
            )
        )
    value = read(DATABRICKS_ONLY, "unset")
    if value != "unset":
        found.append(
            Finding(
                "databricks-only",
                DATABRICKS_ONLY,
                value,
                f"{DATABRICKS_ONLY} does nothing in open-source Spark; remove it.",
            )
        )
    return found


def _shuffle(read: _Read) -> list[Finding]:
    """Look at whether map output leaves the index files that the agents read stream sizes from."""
    found = []
    key = "spark.shuffle.manager"
    value = read(key, "sort").strip()
    if _other_shuffle_manager(value):
        found.append(
            Finding(
                "shuffle-manager",
                key,
                value,
                f"{key}={value}: only Spark's own sort shuffle leaves the index files that agents read, so the sizes "
                f"of streams between executors stay unknown. Moves work; for sizes set {key} to sort.",
            )
        )
    key = "spark.shuffle.sort.io.plugin.class"
    value = read(key, _SHUFFLE_IO[0]).strip()
    if value not in _SHUFFLE_IO:
        found.append(
            Finding(
                "shuffle-io",
                key,
                value,
                f"{key}={value} may write map output elsewhere than to local disks, so the sizes of streams between "
                f"executors may stay unknown. Moves work; for sizes remove {key}.",
            )
        )
    return found


def _other_shuffle_manager(value: str) -> bool:
    return value.lower() not in _SHORT_SHUFFLE_MANAGERS and value != _SHUFFLE_MANAGER


def enabled(read: _Read, what: str) -> bool:
    """Whether one of Spark's features that is off unless asked for is on."""
    return _on(read, f"spark.{what}.enabled")


def _on(read: _Read, key: str) -> bool:
    """Whether a setting is true; unset is not."""
    return read(key, "false").strip().lower() == "true"


def seconds(text: str) -> float | None:
    """Read a duration as Spark does (plain numbers are milliseconds), in seconds; None if Spark could not.

    Source: ``JavaUtils.timeStringAs``.
    """
    match = re.fullmatch(r"(-?\d+)([a-z]+)?", text.strip().lower())
    if match is None:
        return None
    unit = _UNITS.get(match[2] or "ms")
    return None if unit is None else float(match[1]) * unit  # float: too many digits give infinity, not an error
