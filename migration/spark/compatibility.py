"""Check of an application's Spark settings that change what Rechannel can do.

Pure: settings in, findings out. A stock Spark gives none. The effect of each setting was read in the class that the
comments name (4.3.0); `docs/compatibility.md` describes it at length.

Left out, because they change nothing: adaptive execution (``InsertAdaptiveSparkPlan`` skips every streaming plan
with a stateful operator, whatever the settings are) and ``spark.scheduler.mode`` (it orders jobs, not their places).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rechannel.migration.spark import versions

DYNAMIC_ALLOCATION = "spark.dynamicAllocation.enabled"
DECOMMISSION = "spark.decommission.enabled"
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
# With the defaults of Spark. They matter together with facts of the cluster: how long stages last, its cores.
ALWAYS_REPORTED = {"spark.locality.wait": "3s", "spark.task.cpus": "1", "spark.scheduler.mode": "FIFO"}
_MAX_LENGTH = 500  # characters of a reported Spark setting; beyond: it is cut
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

LOCAL_MASTER = "local-master"  # code of the finding that no move is possible

SettingReader = Callable[[str, str], str]


# By code; ``{key}`` and ``{value}`` are the setting's.
_SENTENCES = {
    "local-master": "{key}={value} runs every task in the driver: there is no second executor to move to. "
    "Use a cluster.",
    # TaskSetManager.dequeueTaskFromList: a copy goes to a host where the task has no attempt yet.
    "speculation": "{key} runs a copy of a slow task on another host, and a copy may leave its partition there or "
    "overwrite a steer: moves may miss and are tried again. Switch {key} off for stateful queries.",
    "exclude-on-failure": "{key} keeps tasks off executors that had failures, and Rechannel does not see which: moves "
    "to one miss, and its partitions run elsewhere meanwhile. If moves keep missing, look for excluded executors in "
    "Spark's UI or switch {key} off.",
    # ExecutorMonitor counts tasks, cached blocks and shuffles; SparkContext.killExecutors refuses.
    "dynamic-allocation": "{key} lets Spark remove idle executors, and a state store does not keep one alive: its "
    "partitions land anywhere and are placed again. Releasing drained executors is then Spark's own business; set "
    "spark.dynamicAllocation.minExecutors to what the state needs, or switch it off.",
    "decommission": "{key} lets the cluster retire executors: a retiring one gets no more tasks, its state is not "
    "handed over, and nothing is placed on it. Its partitions land anywhere, load from the checkpoint and are placed "
    "again. `drain --remove` releases executors only while no query runs a batch.",
    # BlockManagerDecommissioner moves RDD and shuffle blocks, if this is on; never state.
    "decommission-storage": "{key} is off while executors may be retired: map output dies with the executor, and the "
    "running batch repeats it. Switch {key} on.",
    # TaskSchedulerImpl.resourceOffers tries preferred executors first, then at once all others.
    "locality-wait-zero": "{key}={value}: a task whose executor has no free core runs at once on any other, so a move "
    "lands only where the target is free when the stage begins, and partitions wander. Set {key} to 3s, the default.",
    "locality-wait-long": "{key}={value}: a task waits that long for a busy or stalled executor while others idle, and "
    "holds its batch up, right after a move too. Set {key} to a few seconds.",
    # StateStore.getStateStoreProvider then reports nothing to the coordinator, and no maintenance runs.
    "unload-on-commit": "{key} closes every store after each batch, and executors no longer say where one was: "
    "partitions nobody steered run anywhere, steered ones stay. Moving then balances load and saves no state load; "
    "switch it off where loading state is what costs.",
    "maintenance-long": "{key}={value}: the old copy of a moved partition may keep its memory that long, and is "
    "presumed closed only after twice that. Set {key} to a minute or so.",
    "store-provider": "{key}={value} has not been tried: moves are attempted, but whether state loads on another "
    "executor is up to that provider. Try it on a test cluster, or use one of Spark's own two.",
    "databricks-only": "{key} does nothing in open-source Spark; remove it.",
    "shuffle-manager": "{key}={value}: only Spark's own sort shuffle leaves the index files that agents read, so the "
    "sizes of streams between executors stay unknown. Moves work; for sizes set {key} to sort.",
    "shuffle-io": "{key}={value} may write map output elsewhere than to local disks, so the sizes of streams between "
    "executors may stay unknown. Moves work; for sizes remove {key}.",
    "bypass-merge": "{key}={value}: when an executor is ended by SIGTERM in the middle of a batch (worker stopped, pod "
    "deleted, node preempted), Spark itself may lose rows of shuffles to at most {value} partitions, and no task fails "
    f"(SPARK-37473; `drain --remove` is safe). {CURE}",
}


@dataclass(frozen=True)
class Finding:
    """A setting that changes what Rechannel can do."""

    code: str
    setting: str
    value: str

    @property
    def sentence(self) -> str:
        """Effect of the setting, and the cure."""
        return _SENTENCES[self.code].format(key=self.setting, value=self.value)


def check_settings(read: SettingReader) -> list[Finding]:
    """Check every setting that matters; ``read(key, default)`` returns one as text.

    A value that Spark itself could not read is skipped. Every default is one that Spark accepts for that key:
    ``SQLConf.getConfString`` refuses a default that its entry cannot convert.
    """
    return [
        *_check_task_placement(read),
        *_check_executors(read),
        *_check_locality_waits(read),
        *_check_state_stores(read),
        *_check_shuffle(read),
    ]


def advice(read: SettingReader) -> list[Finding]:
    """Check for what Spark itself may do to a query: logged once, no problem of the link."""
    # SortShuffleWriter.shouldBypassMergeSort chooses that writer for shuffles to at most so many partitions.
    value = read(BYPASS, "200")
    try:
        bypassing = int(value) > 0
    except ValueError:
        return []
    if not bypassing or _is_other_shuffle_manager(read("spark.shuffle.manager", "sort").strip()):
        return []
    return [Finding("bypass-merge", BYPASS, value)]


def sentences(version: str, read: SettingReader) -> list[str]:
    """Return the sentences to report at attach: on this Spark itself, and on its settings."""
    return [*versions.problems(version), *(finding.sentence for finding in check_settings(read))]


def reportable_settings(read: SettingReader) -> dict[str, str]:
    """Return the settings that matter and are not at their default, for `rechannel doctor`.

    Some are always included. `check_settings` has the same findings on them as on the originals. Bounded in number and
    length.
    """
    changed: dict[str, str] = {}

    def record(key: str, default: str) -> str:
        value = read(key, default)
        if value != default:
            changed[key] = value[:_MAX_LENGTH]
        return value

    always = {key: read(key, default)[:_MAX_LENGTH] for key, default in ALWAYS_REPORTED.items()}
    check_settings(record)
    advice(record)
    return always | changed


def _check_task_placement(read: SettingReader) -> Iterator[Finding]:
    """Check what puts a task elsewhere than its partition was steered to."""
    master = read("spark.master", "").strip()
    if master.startswith("local") and not master.startswith("local-cluster"):
        yield Finding(LOCAL_MASTER, "spark.master", master)
    yield from _check_switch(read, "speculation", "spark.speculation")
    for level in ("", ".application", ".taskAndStage"):
        yield from _check_switch(read, "exclude-on-failure", f"spark.excludeOnFailure{level}.enabled")


def _check_executors(read: SettingReader) -> Iterator[Finding]:
    """Check what removes executors."""
    yield from _check_switch(read, "dynamic-allocation", DYNAMIC_ALLOCATION)
    yield from _check_switch(read, "decommission", DECOMMISSION)
    storage = "spark.storage.decommission.enabled"
    if is_enabled(read, DECOMMISSION) and not is_enabled(read, storage):
        yield Finding("decommission-storage", storage, "false")


def locality_wait(read: SettingReader, level: str) -> tuple[str, str]:
    """Return the setting, and its value, of a level's wait (``process`` or ``node``)."""
    base = "spark.locality.wait"
    own = read(f"{base}.{level}", "")
    return (f"{base}.{level}", own) if own else (base, read(base, "3s"))


def _check_locality_waits(read: SettingReader) -> list[Finding]:
    """Check the wait of a task for its preferred executor, and then for that host."""
    findings: dict[Finding, None] = {}  # without the second one of a value that both levels inherit
    for level in ("process", "node"):
        key, value = locality_wait(read, level)
        wait = seconds(value)
        if wait is None:
            continue
        # A wait of 0 at the level of nodes only skips the host's other executors: the steer itself is not touched.
        if wait <= 0 and level == "process":
            findings[Finding("locality-wait-zero", key, value)] = None
        if wait > LONG_WAIT:
            findings[Finding("locality-wait-long", key, value)] = None
    return list(findings)


def _check_state_stores(read: SettingReader) -> Iterator[Finding]:
    """Check how Spark stores state."""
    prefix = "spark.sql.streaming.stateStore"
    yield from _check_switch(read, "unload-on-commit", f"{prefix}.unloadOnCommit")
    value = read(f"{prefix}.maintenanceInterval", "60s")
    if (seconds(value) or 0.0) > LONG_MAINTENANCE:
        yield Finding("maintenance-long", f"{prefix}.maintenanceInterval", value)
    value = read(f"{prefix}.providerClass", _HDFS_BACKED).strip()
    if value and value not in _PROVIDERS:
        yield Finding("store-provider", f"{prefix}.providerClass", value)
    if (value := read(DATABRICKS_ONLY, "unset")) != "unset":
        yield Finding("databricks-only", DATABRICKS_ONLY, value)


def _check_shuffle(read: SettingReader) -> Iterator[Finding]:
    """Check that map output leaves the index files from which agents read stream sizes."""
    value = read("spark.shuffle.manager", "sort").strip()
    if _is_other_shuffle_manager(value):
        yield Finding("shuffle-manager", "spark.shuffle.manager", value)
    key = "spark.shuffle.sort.io.plugin.class"
    if (value := read(key, _SHUFFLE_IO[0]).strip()) not in _SHUFFLE_IO:
        yield Finding("shuffle-io", key, value)


def _check_switch(read: SettingReader, code: str, key: str) -> Iterator[Finding]:
    if is_enabled(read, key):
        yield Finding(code, key, "true")


def _is_other_shuffle_manager(value: str) -> bool:
    return value.lower() not in _SHORT_SHUFFLE_MANAGERS and value != _SHUFFLE_MANAGER


def is_enabled(read: SettingReader, key: str) -> bool:
    """Whether a setting is true; unset is not."""
    return read(key, "false").strip().lower() == "true"


def seconds(text: str) -> float | None:
    """Read a duration in seconds, None if Spark could not (``JavaUtils.timeStringAs``).

    Plain numbers are milliseconds.
    """
    match = re.fullmatch(r"(-?\d+)([a-z]+)?", text.strip().lower())
    if match is None:
        return None
    unit = _UNITS.get(match[2] or "ms")
    return None if unit is None else float(match[1]) * unit  # float: too many digits give infinity, not an error
